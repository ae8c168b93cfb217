"""The names of files with rows, and what they say: base files, and the log files of merge-on-read tables.

Source: Hudi `FSUtils`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lockprovider.table.format.layout import META

_BASE_FILE = re.compile(r"([a-zA-Z0-9-]+)_([a-zA-Z0-9-]+)_([0-9]+)\.parquet", re.ASCII)
_HFILE = re.compile(r"([a-zA-Z0-9-]+)_([a-zA-Z0-9-]+)_([0-9]+)\.hfile", re.ASCII)
_LOG_FILE = re.compile(r"\.([^._]+)_([0-9]+)\.log\.([0-9]+)_([0-9]+-[0-9]+-[0-9]+)(\.cdc)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class BaseFile:
    """A base file's identity: the file group, the writing task attempt, and the instant.

    `file_id` is `<uuid>-<n>`, `write_token` is `<task partition>-<stage>-<attempt>`; both of letters, digits and `-`.
    """

    file_id: str
    write_token: str
    begin: str

    @property
    def name(self) -> str:
        """The file name, without the partition, of a data table."""
        return f"{self.file_id}_{self.write_token}_{self.begin}.parquet"


def parse_base_file(name: str) -> BaseFile | None:
    """Read a base file's name (without folders); None for any other file."""
    found = _BASE_FILE.fullmatch(name)
    return BaseFile(found[1], found[2], found[3]) if found else None


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file's identity: the file group, the instant of the write, and which one of that it is.

    `write_token` is of digits alone: with letters the JVM takes the file for no log. `is_cdc`: it says how rows
    changed, for change feeds of the JVM's, and has no rows of the table.
    """

    file_id: str
    begin: str
    version: int
    write_token: str
    is_cdc: bool = False

    @property
    def name(self) -> str:
        """The file name, without the partition."""
        cdc = ".cdc" if self.is_cdc else ""
        return f".{self.file_id}_{self.begin}.log.{self.version}_{self.write_token}{cdc}"

    @property
    def place(self) -> tuple[str, int, str]:
        """What log files of a file slice are merged in the order of; by begin times, whenever they were completed."""
        return (self.begin, self.version, self.write_token)


def parse_log_file(name: str) -> LogFile | None:
    """Read a log file's name (without folders); None for any other file, archived logs of old tables among them."""
    found = _LOG_FILE.fullmatch(name)
    return LogFile(found[1], found[2], int(found[3]), found[4], found[5] is not None) if found else None


def data_file(name: str) -> BaseFile | LogFile | None:
    """Read the name of a file with rows, or with how they changed; None for any other file."""
    return parse_base_file(name) or parse_log_file(name)


def hfile_at(path: str) -> tuple[str, BaseFile | LogFile] | None:
    """The partition of a base or log file of the metadata table, and what its name says; None for any other."""
    partition, _, name = path.rpartition("/")
    found = _HFILE.fullmatch(name)
    file = BaseFile(found[1], found[2], found[3]) if found else parse_log_file(name)
    return None if file is None else (partition, file)


def base_file_at(path: str) -> tuple[str, BaseFile] | None:
    """The partition of a base file, and what its name says; None for any other file, and below Hudi's own folder."""
    partition, _, name = path.rpartition("/")
    base = parse_base_file(name)
    return None if base is None or partition.partition("/")[0] == META else (partition, base)


def data_file_at(path: str) -> tuple[str, BaseFile | LogFile] | None:
    """The partition of a base or log file, and what its name says; None for any other, and below Hudi's own folder."""
    partition, _, name = path.rpartition("/")
    file = data_file(name)
    return None if file is None or partition.partition("/")[0] == META else (partition, file)
