"""The fsspec filesystem `cas`, which adds conditional writes to any supported one."""

from fsspec_cas.filesystem.filesystem import CasFileSystem

__all__ = ["CasFileSystem"]
