"""The options of the data source, which are text: what they mean, and what is refused.

Options that nobody knows are refused: a misspelt one would be silently without effect. Those that start with `hoodie.`
are Hudi's own: they tell what is read (`source.hudi_read`) or written (`source.hudi_write`), and how the writer behaves
(`TableSettings.from_hudi`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from fsspec_cas import InvalidInput
from lockprovider.table.engines.spark.source import hudi_read
from lockprovider.table.format.writer_settings import MODE_KEY
from lockprovider.table.settings import Mode, TableSettings
from lockprovider.table.state.context import TableContext
from lockprovider.table.state.fence import Fence

_HUDI = "hoodie."
_READ = frozenset({"columns", "filter", "partitions", "as_of", "begin", "end", "changes", "read_optimized"})
_STREAM = frozenset({"stream_id", "starting", "max_commits"})
_WRITE = frozenset({"mergeschema", "if_exists", "fence"})
_OURS = frozenset({"path", "storage_options", "checkpointlocation"}) | _READ | _STREAM | _WRITE
_OF_CATALOGS = frozenset({"provider", "location"})  # what CREATE TABLE hands over
_INSTEAD = "use save(url), and for a name in SQL a temporary view or register of lockprovider.table.engines.spark"
_IF_EXISTS = ("append", "error", "ignore")


@dataclass(frozen=True)
class SparkOptions:
    """The options of one read or write.

    Attributes:
        url: where the table is (`load(url)`, `save(url)` or the option `path`).
        storage_options: JSON, for fsspec.
        columns: names, separated by commas; None: all.
        filter: see `sql_where`.
        partitions: paths of partitions, separated by commas; None: all.
        as_of: a version, see `Table.version`.
        begin, end: read what was committed after `begin`, until `end`; versions. An empty `begin` is before all.
        changes: `true`: every change with what it was (`_operation`), deletes too; not only the rows that are there.
        read_optimized: `true`: base files only; see `Table.scan`.
        stream_id: what a sink calls its stream; None: the query's own id, which its checkpoint keeps.
        starting: where a source starts: `earliest`, `latest` or a version, after which it reads.
        max_commits: how many commits a source takes at once at most; None: all.
        merge_schema: `mergeSchema=true`: columns that a write has and the table has not are added to it first.
        if_exists: what a write does where there is a table: `append`, or `error` or `ignore`, which Spark itself does
            not let modes of Python's sources be.
        fence: the epoch under which a write is made, `7` or, with a name, `loader:7`; see `Table.under`.
        hudi: those that start with `hoodie.`.
    """

    url: str
    storage_options: dict[str, Any] | None = None
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    partitions: tuple[str, ...] | None = None
    as_of: str | None = None
    begin: str | None = None
    end: str | None = None
    changes: bool = False
    read_optimized: bool = False
    stream_id: str | None = None
    starting: str = "earliest"
    max_commits: int | None = None
    merge_schema: bool = False
    if_exists: str = "append"
    fence: Fence | None = None
    hudi: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SparkOptions:
        """Read them.

        Raises:
            InvalidInput: an option is unknown, missing, or has a value that it cannot have.
        """
        known = {key.lower(): value for key, value in given.items()}
        if known.keys() >= _OF_CATALOGS:
            raise InvalidInput(f"a Python source cannot be a table of Spark's catalog: {_INSTEAD}")
        for key in sorted(known):
            if key not in _OURS | hudi_read.OBEYED and not key.startswith(_HUDI):
                alike = get_close_matches(key, _OURS | hudi_read.OBEYED, n=1)
                hint = f"did you mean {alike[0]}? There" if alike else "there"
                raise InvalidInput(f"option {key} is not known; {hint} are {sorted(_OURS)} and Hudi's own")
        known |= hudi_read.ours(known)
        if not known.get("path"):
            raise InvalidInput(
                "no path: say load(url), save(url), or the option path; Spark does not tell a Python source where a "
                f"table of its catalog is (saveAsTable, CREATE TABLE, insertInto): {_INSTEAD}"
            )
        if ("begin" in known or "end" in known) and "as_of" in known:
            raise InvalidInput("begin and end tell what changed, as_of what was there: give one or the other")
        found = cls(
            url=known["path"],
            storage_options=json_option(known.get("storage_options")),
            columns=_names(known.get("columns")),
            filter=known.get("filter"),
            partitions=_names(known.get("partitions")),
            as_of=known.get("as_of"),
            begin=known.get("begin"),
            end=known.get("end"),
            changes=_flag("changes", known.get("changes", "false")),
            read_optimized=_flag("read_optimized", known.get("read_optimized", "false")),
            stream_id=known.get("stream_id"),
            starting=known.get("starting", "earliest"),
            max_commits=count_option("max_commits", known.get("max_commits")),
            merge_schema=_flag("mergeSchema", known.get("mergeschema", "false")),
            if_exists=known.get("if_exists", "append").lower(),
            fence=_fence(known.get("fence")),
            hudi={key: value for key, value in known.items() if key.startswith(_HUDI)},
        )
        if found.if_exists not in _IF_EXISTS:
            raise InvalidInput(f"if_exists={found.if_exists} is none of {', '.join(_IF_EXISTS)}")
        if found.read_optimized:
            found.refuse("a read of base files only", "begin", "end", "changes")
        return found

    def refuse(self, purpose: str, *names: str) -> None:
        """Refuse options that a purpose has no use for.

        Raises:
            InvalidInput: one of these is given.
        """
        given = [name for name in names if getattr(self, name) not in {None, "earliest", "append", False}]
        if given:
            raise InvalidInput(f"options {given} mean nothing for {purpose}; leave them out")

    @property
    def settings(self) -> TableSettings:
        """How the writer behaves: several writers, unless Hudi's key says otherwise."""
        return TableSettings.from_hudi({MODE_KEY: Mode.OPTIMISTIC.value, **self.hudi})

    def open(self) -> TableContext:
        """Open the table.

        Raises:
            TableNotFound, UnsupportedTable: see `Table.open`.
        """
        table = TableContext.open(self.url, storage_options=self.storage_options, settings=self.settings)
        return table if self.fence is None else table.under(self.fence)


def _fence(text: str | None) -> Fence | None:
    if text is None:
        return None
    name, _, epoch = text.rpartition(":")
    return Fence.of((name, count_option("fence", epoch)))


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _flag(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise InvalidInput(f"{name}={text} is neither true nor false")
    return text.lower() == "true"


def count_option(name: str, text: str | None) -> int | None:
    """A count from 1 on; None: it was not given.

    Raises:
        InvalidInput: it is none.
    """
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInput(f"{name}={text} is no count: give a number from 1 on")
    return int(text)


def json_option(text: str | None) -> dict[str, Any] | None:
    """Storage options, as JSON; None: they were not given.

    Raises:
        InvalidInput: they are none.
    """
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidInput("storage_options is no JSON; write it with json.dumps") from error
    if not isinstance(found, dict):
        raise InvalidInput("storage_options is no JSON object; write it with json.dumps of a dict")
    return found
