"""S3 and compatible stores: code of both clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from fsspec_cas.answer import WriteAnswer
from fsspec_cas.backends.base import PartRules
from fsspec_cas.backends.http import ALL_CAPABILITIES, HttpBackend
from fsspec_cas.backends.reply import StatementKind, StoreRequest, StoreStatement, Verb
from fsspec_cas.backends.s3.answers import S3Dialect
from fsspec_cas.errors import NotSupported
from fsspec_cas.outcome import Absent, Condition, Version

_AMAZON = ("amazonaws.com", "amazonaws.com.cn", "api.aws")


def is_amazon(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    return any(host == amazon or host.endswith(f".{amazon}") for amazon in _AMAZON)


def is_in_directory_bucket(backend_name: str, path: str) -> bool:
    return backend_name == S3Api.name and path.partition("/")[0].endswith("--x-s3")


class S3Api(HttpBackend):
    name = "s3"
    capabilities = replace(ALL_CAPABILITIES, unique_versions=False)  # the ETag is a hash
    part_rules = PartRules(least_bytes=5 * 1024 * 1024, most_parts=10_000, tail_with_finish=False)

    def __init__(self, fs: Any) -> None:
        super().__init__(fs, S3Dialect())
        self._etag_form = "quoted"
        self._batches = True

    async def delete(self, path: str, condition: Version | None, *, timeout_s: float) -> WriteAnswer:
        """Send DeleteObject, with If-Match for a condition.

        Without one, a store without request ids gets DeleteObjects, whose document is proof.
        """
        if condition is None and self.gives_request_ids is False and self._batches:
            try:
                return await self.delete_batch([path], timeout_s=timeout_s)
            except NotSupported:
                pass
        return await super().delete(path, condition, timeout_s=timeout_s)

    async def delete_batch(self, paths: Sequence[str], *, timeout_s: float) -> WriteAnswer:
        """Send DeleteObjects for paths in one bucket, also missing ones; StoreError names refused objects.

        If all refusals are temporary, return `NoAnswer`. NotSupported, also for denied access: delete singly. Once the
        store has stated that it lacks the operation, later calls raise it without a request.
        """
        if not self._batches:
            raise NotSupported(f"the store at {paths[0]!r} does not support DeleteObjects")
        answer: WriteAnswer = await self._ask(StoreRequest(Verb.DELETE_MANY, paths[0], paths=tuple(paths)), timeout_s)
        return answer

    def _meaning(self, request: StoreRequest, statement: StoreStatement) -> Any:
        if request.verb is Verb.DELETE_MANY and (
            statement.kind is StatementKind.UNSUPPORTED or statement.code == "MethodNotAllowed"
        ):
            self._batches = False
        return super()._meaning(request, statement)

    def adapt(self, refused: str = "") -> bool:
        """Switch If-Match between quoted and unquoted ETags, if `refused` is in use."""
        if refused in ("", self._etag_form):
            self._etag_form = "unquoted" if self._etag_form == "quoted" else "quoted"
        return True

    def _form(self, path: str, condition: Condition) -> str:
        return "" if isinstance(condition, Absent) else self._etag_form

    def _conditions(self, request: StoreRequest) -> dict[str, str]:
        version = request.version
        if version is None:
            return {"IfNoneMatch": "*"} if request.verb in (Verb.CREATE, Verb.FINISH) else {}
        if request.verb is Verb.GET:
            return {"IfNoneMatch": version.token}
        return {"IfMatch": version.token if self._etag_form == "quoted" else version.token.strip('"')}
