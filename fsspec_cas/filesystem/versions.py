"""`info`, `ls` and `find` of `cas`: the target's own, with the version of each file."""

from __future__ import annotations

from typing import Any

from fsspec_cas.backends import Backend
from fsspec_cas.errors import InvalidInput, ObjectNotFound
from fsspec_cas.filesystem.conditional import ConditionalCalls
from fsspec_cas.filesystem.forward import plain
from fsspec_cas.version import Version

# What the target calls the version; of the other kinds a look is asked for, which costs no request.
_VERSION_KEYS = {"s3": "ETag", "gcs": "generation", "azure": "etag"}


class Versions(ConditionalCalls):
    """What shows versions. That of a listing is as old as the listing, which a target may keep (s3fs: `refresh=True`).

    A condition on a version that is old is refused by the store, and nothing is written; then the listing is dropped.
    """

    cas_backend: Backend

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """The target's, with "version" (text) for a file; out of the same answer where the target shows it.

        The store is asked, whatever listings the target has kept.
        """
        self._changed(self._full(path))
        return self._with_version(self.fs.info(plain(path), **kwargs))

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        self._changed(self._full(path))
        return self._with_version(await self.fs._info(plain(path), **kwargs))  # noqa: SLF001

    def ls(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """The target's; with `detail`, each file has its "version" (text), as the listing showed it."""
        return self._all_with_versions(self.fs.ls(plain(path), *args, **kwargs))

    async def _ls(self, path: str, *args: Any, **kwargs: Any) -> Any:
        return self._all_with_versions(await self.fs._ls(plain(path), *args, **kwargs))  # noqa: SLF001

    def find(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """The target's; with `detail`, each file has its "version" (text), as the listing showed it."""
        return self._all_with_versions(self.fs.find(plain(path), *args, **kwargs))

    async def _find(self, path: str, *args: Any, **kwargs: Any) -> Any:
        return self._all_with_versions(await self.fs._find(plain(path), *args, **kwargs))  # noqa: SLF001

    def _all_with_versions(self, found: Any) -> Any:
        if isinstance(found, dict):
            return {name: self._with_version(one) for name, one in found.items()}
        return [self._with_version(one) if isinstance(one, dict) else one for one in found]

    def _with_version(self, info: dict[str, Any]) -> dict[str, Any]:
        if info.get("type") != "file":
            return info
        kind = self.cas_backend.name
        if kind in _VERSION_KEYS:
            token = info.get(_VERSION_KEYS[kind])
            return {**info, "version": str(_version(kind, str(token)))} if token else info
        try:
            return {**info, "version": str(self.store.head(info["name"]).version)}
        except (ObjectNotFound, InvalidInput):  # removed in between; or no conditional call takes such a name
            return info


def _version(kind: str, token: str) -> Version:
    bare = kind != "gcs" and not token.startswith(('"', "W/"))  # Azure lists an ETag without its quotes
    return Version(kind, f'"{token}"' if bare else token)
