"""What may be written: bytes, in one of Python's three types for them, and nothing that Python turns into bytes.

`bytes(5)` is five zeros, and `bytes([1, 2])` two bytes: a number or a list that is written by mistake would go unseen.
"""

from __future__ import annotations

from fsspec_cas.errors import NotBytes

Bytes = bytes | bytearray | memoryview


def check_bytes(path: str, data: object) -> bytes:
    """The bytes that are to be written to `path`; a copy, where they could change meanwhile.

    Raises:
        NotBytes: it is anything else than bytes, bytearray or memoryview.

    >>> check_bytes("a", bytearray(b"1"))
    b'1'
    >>> check_bytes("a", "1")
    Traceback (most recent call last):
    ...
    fsspec_cas.errors.NotBytes: 'a' cannot be written with a str: encode the text first: data.encode()
    """
    if isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise not_bytes(path, data)


def check_buffer(path: str, data: object) -> memoryview:
    """The bytes to be written to a stream: of any object that shares its memory, as Python's files take it.

    Raises:
        NotBytes: it shares none.
    """
    try:
        view = memoryview(data)  # type: ignore[arg-type] # the question is whether it is one
    except TypeError:
        raise not_bytes(path, data) from None
    return view.cast("B") if view.nbytes and view.c_contiguous else memoryview(view.tobytes())


def not_bytes(path: str, data: object) -> NotBytes:
    """What was given, and what to give."""
    cure = "encode the text first: data.encode()" if isinstance(data, str) else "give bytes, bytearray or memoryview"
    return NotBytes(f"{path!r} cannot be written with a {type(data).__name__}: {cure}", path=path)
