"""Log files of merge-on-read tables: blocks, one after the other. What rows are in a block: `log_content`.

    "#HUDI#" | int64 size of what follows | int32 1 | int32 kind | header | int64 length, content | footer | int64 size

All numbers are big-endian; a header is a count, and for each entry its key, length and UTF-8 text. The last number
counts from the magic, so that a block whose writer died shows.

Promised: what is decoded and encoded again has the same bytes. A block that is torn reads as if it were not there, and
the blocks after it are found by their magic: what a dead writer left is no data. NOT promised: to see that bytes inside
of a whole block were changed.

Source: Hudi `HoodieLogFormatWriter`, `HoodieLogFileReader`, `HoodieLogBlock`, `BaseHoodieLogRecordReader`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from lockprovider.table.errors import Corrupt, UnsupportedTable

MAGIC = b"#HUDI#"
_VERSION = 1
_SIZE = struct.Struct(">q")
_TWO = struct.Struct(">ii")
_COUNT = struct.Struct(">i")
_NO_FOOTER = _COUNT.pack(0)
_MOST_BYTES = (1 << 31) - 1  # the JVM reads the size as int
_ROLLBACK = "0"


class BlockKind(IntEnum):
    """What is in a block."""

    COMMAND = 0
    DELETE = 1
    CORRUPT = 2
    AVRO = 3
    HFILE = 4
    PARQUET = 5
    CDC = 6


class Header(IntEnum):
    """What a block says of itself, in Hudi's words."""

    INSTANT_TIME = 0
    TARGET_INSTANT_TIME = 1
    SCHEMA = 2
    COMMAND_BLOCK_TYPE = 3
    COMPACTED_BLOCK_TIMES = 4
    RECORD_POSITIONS = 5
    BLOCK_IDENTIFIER = 6
    IS_PARTIAL = 7
    BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS = 8


@dataclass(frozen=True, slots=True)
class LogBlock:
    """One block. `header` keeps its order, and entries that are unknown here."""

    kind: BlockKind
    header: Mapping[int, str]
    content: bytes = b""

    @property
    def instant(self) -> str:
        """The begin time of the write that it is of."""
        return self.header.get(Header.INSTANT_TIME, "")

    @property
    def is_partial(self) -> bool:
        """Whether its rows have only the columns that were set."""
        return self.header.get(Header.IS_PARTIAL, "").lower() == "true"


def encode_blocks(blocks: Iterable[LogBlock]) -> bytes:
    """The bytes of a log file.

    Raises:
        ValueError: a block is too large for the JVM, 2 GiB.
    """
    return b"".join(map(_encode, blocks))


def _encode(block: LogBlock) -> bytes:
    parts = [_TWO.pack(_VERSION, block.kind), _COUNT.pack(len(block.header))]
    for key, text in block.header.items():
        value = text.encode()
        parts += (_TWO.pack(key, len(value)), value)
    parts += (_SIZE.pack(len(block.content)), block.content, _NO_FOOTER)
    body = b"".join(parts)
    size = len(body) + _SIZE.size
    if size > _MOST_BYTES:
        raise ValueError(f"a log block of {size} bytes cannot be read by the JVM; write several")
    return b"".join((MAGIC, _SIZE.pack(size), body, _SIZE.pack(size + len(MAGIC))))


def decode_blocks(data: bytes, file_name: str) -> tuple[LogBlock, ...]:
    """The whole blocks of a log file, in their order.

    Raises:
        Corrupt: it does not begin with a block, or a whole block cannot be understood; the message names the file.
        UnsupportedTable: a block is of a format that is not known here.
    """
    found: list[LogBlock] = []
    at, view = 0, memoryview(data)
    if data and not data.startswith(MAGIC[: len(data)]):
        raise Corrupt(f"log file {file_name!r} does not begin with {MAGIC!r}; restore the file")
    while at >= 0:
        end = _end_of(data, at)
        if end is None:
            at = data.find(MAGIC, at + 1)  # torn: the next one, if any
            continue
        found.append(_decode(view[at + len(MAGIC) + _SIZE.size : end - _SIZE.size], file_name))
        at = end if data.startswith(MAGIC, end) else data.find(MAGIC, end)
    return tuple(found)


def _end_of(data: bytes, at: int) -> int | None:
    """Where the block that begins here ends; None if it is torn."""
    start = at + len(MAGIC) + _SIZE.size
    if start > len(data):
        return None
    (size,) = _SIZE.unpack_from(data, at + len(MAGIC))
    end = start + int(size)
    if size < _SIZE.size or end > len(data):
        return None
    (again,) = _SIZE.unpack_from(data, end - _SIZE.size)
    return end if again == size + len(MAGIC) else None


def _decode(body: memoryview, file_name: str) -> LogBlock:
    try:
        version, kind = _TWO.unpack_from(body, 0)
        if version != _VERSION or kind not in BlockKind.__members__.values():
            raise UnsupportedTable(
                f"log file {file_name!r} has a block of kind {kind} and version {version}, which cannot be read here; "
                "compact the table with the engine that wrote it"
            )
        header, at = _header(body, _TWO.size)
        (length,) = _SIZE.unpack_from(body, at)
        at += _SIZE.size
        if length < 0 or at + length > len(body):
            raise Corrupt(f"log file {file_name!r} has a block of a wrong length; restore the file")
    except (struct.error, UnicodeDecodeError) as error:
        raise Corrupt(f"log file {file_name!r} has a block that cannot be understood ({error}); restore it") from error
    return LogBlock(BlockKind(kind), header, bytes(body[at : at + length]))


def _header(body: memoryview, at: int) -> tuple[dict[int, str], int]:
    (count,) = _COUNT.unpack_from(body, at)
    at += _COUNT.size
    found: dict[int, str] = {}
    for _ in range(count):
        key, length = _TWO.unpack_from(body, at)
        at += _TWO.size
        if not 0 <= length <= len(body) - at:
            raise struct.error(f"a header of {length} bytes")
        found[key] = str(body[at : at + length], "utf-8")
        at += length
    return found, at


def effective(blocks: Iterable[LogBlock]) -> tuple[LogBlock, ...]:
    """The blocks with rows or deletes, of those in merge order, that count.

    A command block takes back the blocks before it of the instant that it names: so older tables roll back. A block
    that a log compaction made stands where the newest of the instants was that it was made of, and they do not count.

    Raises:
        UnsupportedTable: a command that is not known here.
    """
    by_instant: dict[str, list[LogBlock]] = {}
    for block in blocks:
        if block.kind is BlockKind.COMMAND:
            if block.header.get(Header.COMMAND_BLOCK_TYPE) != _ROLLBACK:
                raise UnsupportedTable(f"a log file has the command {dict(block.header)}; compact it with its engine")
            by_instant.pop(block.header.get(Header.TARGET_INSTANT_TIME, ""), None)
        elif block.kind in (BlockKind.AVRO, BlockKind.PARQUET, BlockKind.HFILE, BlockKind.DELETE):
            by_instant.setdefault(block.instant, []).append(block)
    return _log_compacted(by_instant)


def _log_compacted(by_instant: Mapping[str, Sequence[LogBlock]]) -> tuple[LogBlock, ...]:
    order = list(by_instant)
    made_of: dict[str, str] = {}  # the instant by whose blocks this one's are replaced
    for instant in reversed(order):
        times = by_instant[instant][0].header.get(Header.COMPACTED_BLOCK_TIMES, "")
        for one in filter(None, (part.strip() for part in times.split(","))):
            made_of[one] = made_of.get(instant, instant)
    newest = {into: one for one in order if (into := made_of.get(one)) is not None}
    standing = {one: into for into, one in newest.items()}
    found: list[LogBlock] = []
    for instant in order:
        if instant in standing:
            found += by_instant[standing[instant]]
        elif instant not in made_of and instant not in newest:
            found += by_instant[instant]
    return tuple(found)
