"""fsspec filesystem `cas`."""

from fsspec_cas.filesystem.filesystem import CasFileSystem

__all__ = ["CasFileSystem"]
