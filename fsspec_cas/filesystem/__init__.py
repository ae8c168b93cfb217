"""`cas`: an fsspec filesystem that adds conditional writes to any supported one.

Open it by `fsspec.filesystem("cas", target_protocol=...)`, or chained: `cas::s3://...`. It imports only the store and
lower modules.
"""

from fsspec_cas.filesystem.filesystem import CasFileSystem

__all__ = ["CasFileSystem"]
