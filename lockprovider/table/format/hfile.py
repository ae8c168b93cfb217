"""Codec of version 3 HFiles, the metadata table's format: sorted keys with their values, in blocks.

All numbers are big-endian. Files are read whole, without their indexes.

Source: Hudi `hudi-io` `HFileReaderImpl`, `HFileWriterImpl`, `HFileTrailer`; HBase `HFileBlock`, `FixedFileTrailer`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from lockprovider.bounded import LARGEST_OBJECT, inflate, plausible
from lockprovider.table.errors import UnsupportedTable, undamaged
from lockprovider.table.format.bloom import TYPE_CODE

_TRAILER_BYTES = 4096
_VERSION = b"\x00\x00\x00\x03"
_MAJOR, _MOST_MINOR = 3, 3  # Hudi before 1.1 writes 3.3.
_TRAILER, _DATA, _META, _INDEX, _INFO = b'TRABLK"$', b"DATABLK*", b"METABLKc", b"IDXROOT2", b"FILEINF2"
_BLOOM = b"bloomFilter"
# magic, size on disk, size, previous offset, checksum kind, bytes per checksum, size without checksums
_HEAD = struct.Struct(">8siiqBii")
_ENTRY = struct.Struct(">iih")
_AROUND_KEY = 12  # own length, empty column family, time, kind
_AFTER_KEY = 10
_PROTOBUF = b"PBUF"
_WITH_TIMES = "KEY_VALUE_VERSION"
_GZIP, _PLAIN = 1, 2
_GZIP_WINDOW = 31
_VARINT, _LONG, _BYTES, _INT = 0, 1, 2, 5
_MOST_SHIFT = 63
_CHECKED = 16384  # bytes per checksum
_CHECKSUM = bytes(4)
_NO_BLOCK = -1
# no family, latest time, "put"
_AFTER = struct.Struct(">BqB").pack(0, (1 << 63) - 1, 4)
_ORDER = b"org.apache.hudi.io.storage.HoodieHBaseKVComparator"
_ONE_BYTE = 127


class _Trailer(IntEnum):
    INFO_AT = 1
    INDEX_AT = 2
    DATA_BYTES = 3
    DATA_BLOCKS = 5
    META_BLOCKS = 6
    ENTRIES = 7
    LEVELS = 8
    FIRST_DATA = 9
    LAST_DATA = 10
    ORDER = 11
    CODEC = 12


@dataclass(frozen=True, slots=True)
class HFile:
    """Decoded HFile."""

    entries: tuple[tuple[bytes, bytes], ...]
    info: Mapping[str, bytes]
    schema_json: str = ""


def decode_hfile(data: bytes, file_name: str) -> HFile:
    with undamaged(f"HFile {file_name!r} cannot be understood"):
        return _decode(data, file_name)


def _decode(data: bytes, file_name: str) -> HFile:
    """Decode a whole HFile; raise any error if damaged.

    `UnsupportedTable`: an unknown version, compression or form of entries.
    """
    end = len(data) - _TRAILER_BYTES
    if end < 0 or not data.startswith(_TRAILER, end):
        raise ValueError("it does not end as one")
    minor, major = data[-4], int.from_bytes(data[-3:], "big")
    if major != _MAJOR or minor > _MOST_MINOR:
        version = f"version {data[-4:].hex()}, only 3.0 to 3.{_MOST_MINOR} are known"
        raise UnsupportedTable(f"HFile {file_name!r} is of {version}; use JVM Hudi")
    length, at = _varint(data, end + len(_TRAILER))
    fields = {number: value for number, value in _fields(data[at : at + length]) if isinstance(value, int)}
    codec = fields.get(_Trailer.CODEC, _PLAIN)
    if codec not in (_GZIP, _PLAIN):
        raise UnsupportedTable(f"HFile {file_name!r} has compression {codec}, only GZIP and none are known")
    _, info_block, _ = _block(data, fields[_Trailer.INFO_AT], codec)
    info = _info(info_block)
    if fields.get(_Trailer.ENTRIES, 0) and info.get(_WITH_TIMES) != b"\x00\x00\x00\x01":
        raise UnsupportedTable(f"HFile {file_name!r} has entries of another form; compact it with JVM Hudi")
    entries = tuple(_entries(data, fields.get(_Trailer.FIRST_DATA, 0), fields[_Trailer.INDEX_AT], codec))
    if len(entries) != fields.get(_Trailer.ENTRIES, 0):
        raise ValueError(f"it has {len(entries)} entries, not {fields.get(_Trailer.ENTRIES, 0)}")
    return HFile(entries, info, info.get("schema", b"").decode())


def _block(data: bytes, at: int, codec: int) -> tuple[bytes, bytes, int]:
    """Magic, uncompressed content and end offset of the block at `at`; ignores its checksums.

    Raises `ValueError` above 64 MiB and 32 times its stored size, any error if damaged.
    """
    magic, on_disk, size, _, _, _, with_head = _HEAD.unpack_from(data, at)
    start, end = at + _HEAD.size, at + with_head
    following = start + on_disk
    if not start <= end <= following <= len(data):
        raise ValueError(f"a block at {at} that is cut")
    payload = data[start:end]
    most = max(LARGEST_OBJECT, plausible(payload))
    if not 0 <= size <= most:
        raise ValueError(f"a block at {at} of {size} bytes, and {most} are the most that is read")
    found = inflate(payload, most=size, wbits=_GZIP_WINDOW) if codec == _GZIP else payload
    if len(found) != size:
        raise ValueError(f"a block at {at} of {len(found)} bytes, not {size}")
    return magic, found, following


def _entries(data: bytes, at: int, end: int, codec: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of the data blocks from offset `at` to `end`.

    Raises `ValueError` if they exceed 128 MiB and 32 times the file.
    """
    left = most = max(2 * LARGEST_OBJECT, plausible(data))
    while at < end:
        magic, content, at = _block(data, at, codec)
        left -= len(content)
        if left < 0:
            raise ValueError(f"data of more than {most} bytes")
        if magic == _DATA:
            yield from _pairs(content)


def _pairs(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield a data block's keys and values; raise any error for a cut entry, `ValueError` for one with a version."""
    at = 0
    while at < len(content):
        key_bytes, value_bytes, length = _ENTRY.unpack_from(content, at)
        start = at + _ENTRY.size
        value_at = start + length + _AFTER_KEY
        at = value_at + value_bytes + 1
        if key_bytes != length + _AROUND_KEY or min(length, value_bytes) < 0 or at > len(content):
            raise ValueError("an entry of a wrong length")
        if content[at - 1]:
            raise ValueError("an entry with a version of its own")
        yield content[start : start + length], content[value_at : value_at + value_bytes]


def _info(content: bytes) -> dict[str, bytes]:
    if not content.startswith(_PROTOBUF):
        raise ValueError("file info of another form")
    length, at = _varint(content, len(_PROTOBUF))
    pairs = (dict(_fields(pair)) for _, pair in _fields(content[at : at + length]) if isinstance(pair, bytes))
    return {_bytes(pair[1]).decode(): _bytes(pair.get(2, b"")) for pair in pairs}


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise TypeError("a number where bytes belong")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protobuf message; only varints become int.

    Raises `ValueError` or `IndexError` for a cut field, `ValueError` for an unknown kind.
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        size, at = (8, at) if kind == _LONG else (4, at) if kind == _INT else _varint(data, at)
        if kind not in (_LONG, _BYTES, _INT) or at + size > len(data):
            raise ValueError(f"a field of kind {kind} that is cut or not known")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Protobuf number at offset `at`, and its end.

    Raises `ValueError` above ten bytes, `IndexError` if cut.
    """
    value = 0
    for shift in range(0, _MOST_SHIFT + 1, 7):
        value |= (data[at] & 127) << shift
        at += 1
        if not data[at - 1] & 128:
            return value, at
    raise ValueError("a number that does not end")


def _tagged(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _number(number << 3 | _VARINT) + _number(value)
    return _number(number << 3 | _BYTES) + _number(len(value)) + value


def _number(value: int) -> bytes:
    found = bytearray()
    while value > 127:  # noqa: PLR2004 - seven bits a byte
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def encode_hfile(entries: Mapping[bytes, bytes], schema_json: str, made_ms: int, bloom: str = "") -> bytes:
    """Sort entries by key, and encode them in one data block like JVM Hudi's writer.

    Equal arguments give equal bytes. With `bloom`, the keys' filter, the file has the form of a base file. Raises
    `ValueError` without entries, or for a key above 32,767 bytes.
    """
    keys = sorted(entries)
    if not keys or max(map(len, keys)) >= 1 << 15:
        raise ValueError(f"an HFile of {len(keys)} entries, or with a key of more than 32,767 bytes")
    data = b"".join(_entry(key, entries[key]) for key in keys)
    meta_at = len(data_block := _packed(_DATA, data))
    index = struct.pack(">qi", 0, meta_at) + _hadoop_number(len(keys[0]) + 2) + _with_length(keys[0])
    meta_block, meta_index = _packed(_META, bloom.encode()) if bloom else b"", b""
    if bloom:
        meta_index = struct.pack(">qi", meta_at, len(meta_block)) + _hadoop_number(len(_BLOOM)) + _BLOOM
    index_at = meta_at + len(meta_block)
    before_info = b"".join((data_block, meta_block, _packed(_INDEX, index), _packed(_INDEX, meta_index)))
    info = {
        "schema": schema_json.encode(),
        **({"bloomFilterTypeCode": TYPE_CODE.encode()} if bloom else {}),
        "hfile.LASTKEY": _with_length(keys[-1]),
        "hfile.AVG_VALUE_LEN": struct.pack(">i", sum(map(len, entries.values())) // len(keys)),
        **({"minRecordKey": keys[0]} if bloom else {}),
        "hfile.AVG_KEY_LEN": struct.pack(">i", sum(map(len, keys)) // len(keys)),
        **({"maxRecordKey": keys[-1]} if bloom else {}),
        _WITH_TIMES: struct.pack(">i", 1),
        "MAX_MEMSTORE_TS_KEY": struct.pack(">q", 0),
        "hfile.CREATE_TIME_TS": struct.pack(">q", made_ms),
    }
    message = b"".join(_tagged(1, _tagged(1, name.encode()) + _tagged(2, value)) for name, value in info.items())
    fields: dict[_Trailer, int | bytes] = {
        _Trailer.INFO_AT: len(before_info),
        _Trailer.INDEX_AT: index_at,
        _Trailer.DATA_BYTES: len(data),
        _Trailer.DATA_BLOCKS: 1,
        _Trailer.META_BLOCKS: int(bool(bloom)),
        _Trailer.ENTRIES: len(keys),
        _Trailer.LEVELS: 1,
        _Trailer.FIRST_DATA: 0,
        _Trailer.LAST_DATA: 0,
        _Trailer.ORDER: _ORDER,
        _Trailer.CODEC: _GZIP,
    }
    trailer = b"".join(_tagged(number, value) for number, value in fields.items())
    end = (_TRAILER + _number(len(trailer)) + trailer).ljust(_TRAILER_BYTES - len(_VERSION), b"\0") + _VERSION
    return b"".join((before_info, _packed(_INFO, _PROTOBUF + _number(len(message)) + message), end))


def _entry(key: bytes, value: bytes) -> bytes:
    return b"".join((_ENTRY.pack(len(key) + _AROUND_KEY, len(value), len(key)), key, _AFTER, value, b"\0"))


def _with_length(key: bytes) -> bytes:
    return struct.pack(">h", len(key)) + key


def _packed(magic: bytes, payload: bytes) -> bytes:
    packer = zlib.compressobj(wbits=_GZIP_WINDOW)
    packed = packer.compress(payload) + packer.flush()
    with_head = _HEAD.size + len(packed)
    checksums = _CHECKSUM * -(-with_head // _CHECKED)
    head = _HEAD.pack(magic, len(packed) + len(checksums), len(payload), _NO_BLOCK, 0, _CHECKED, with_head)
    return head + packed + checksums


# Source: Hadoop `WritableUtils.writeVInt`.
def _hadoop_number(value: int) -> bytes:
    if value <= _ONE_BYTE:
        return bytes([value])
    size = -(-value.bit_length() // 8)
    return bytes([256 - 112 - size]) + value.to_bytes(size, "big")
