"""How long a connection may keep silent, and why a store could not be reached."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

from fsspec_cas.backends.http.reply import StoreRequest, Verb
from fsspec_cas.errors import Unavailable

_SMALL_BYTES = 1 << 20
_LEAST_PATIENCE_S = 1.0
_NO_HOST = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))


def patience_s(timeout_s: float, asked: StoreRequest) -> float:
    """How long one connection may keep silent: a third of the time, so that a dead one leaves time for another.

    All of it where the store has work to do first, with many bytes or many parts.
    """
    if len(asked.data) > _SMALL_BYTES or asked.verb is Verb.FINISH:
        return timeout_s
    return min(timeout_s, max(_LEAST_PATIENCE_S, timeout_s / 3))


def unreached(
    error: BaseException, hint: str, path: str, *, proven: bool, unsent: tuple[type[BaseException], ...] = ()
) -> str | None:
    """Why the store was not reached, if nothing was sent; None if something may have been.

    `hint` names the options for trusted certificates. `proven`: the store has answered before, so its address is right.
    `unsent`: the client library's errors that say so.

    Raises:
        Unavailable: the address or a certificate is wrong, which no second send mends.
    """
    causes = list(_causes(error))
    wrong = next(filter(None, (_misconfigured(cause, hint) for cause in causes)), None)
    if wrong is not None and not proven:
        raise Unavailable(f"{path!r} cannot be reached, and nothing was sent: {wrong}", path=path) from error
    if wrong is not None or any(isinstance(one, (*unsent, socket.gaierror, ConnectionRefusedError)) for one in causes):
        return f"could not connect: {error}"
    return None


def _misconfigured(cause: BaseException, hint: str) -> str | None:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({getattr(cause, 'verify_message', cause)}): {hint}"
    if isinstance(cause, ssl.SSLError) and getattr(cause, "reason", "") in (
        "WRONG_VERSION_NUMBER",
        "RECORD_LAYER_FAILURE",
    ):
        return "what listens there speaks no TLS: write http:// in place of https:// in the endpoint"
    if isinstance(cause, socket.gaierror) and cause.errno in _NO_HOST:
        return f"there is no such host ({cause}): check the endpoint and the region"
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what led to it, wherever a library keeps that."""
    left: list[object] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop(0)
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        kept = getattr(one, "kwargs", None)
        left += [one.__cause__, kept.get("error") if isinstance(kept, dict) else None]
        left += [getattr(one, name, None) for name in ("os_error", "certificate_error", "inner_exception")]
