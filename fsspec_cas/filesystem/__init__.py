"""`cas`: every fsspec filesystem with atomic creates.

May import: the store and below. `fsspec.filesystem("cas", target_protocol=...)`, or chained: `cas::s3://...`.
"""

from fsspec_cas.filesystem.filesystem import CasFileSystem

__all__ = ["CasFileSystem"]
