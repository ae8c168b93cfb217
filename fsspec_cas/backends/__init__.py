"""Opens URLs, and makes the backend of an fsspec filesystem."""

from __future__ import annotations

import hashlib
import inspect
import os
import weakref
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from fsspec_cas.arguments import check_root
from fsspec_cas.backends.base import Backend, Relay, attributes_of
from fsspec_cas.bridge.drive import Inline
from fsspec_cas.bridge.threads import on_thread
from fsspec_cas.errors import AccessDenied, CasError, InvalidInput, InvalidUrl, NotSupported, Unavailable
from fsspec_cas.machine import Machine
from fsspec_cas.urls import check_url

__all__ = ["Backend", "Relay", "attributes_of", "backend_for", "is_remote", "off_thread", "service_key", "split_url"]

_BACKENDS = {
    "file": ("local", "LocalBackend", ""),
    "local": ("local", "LocalBackend", ""),
    "memory": ("memory", "MemoryBackend", ""),
    "s3": ("s3.client", "S3Backend", "s3"),
    "s3a": ("s3.client", "S3Backend", "s3"),
    "gs": ("gcs.client", "GcsBackend", "gcs"),
    "gcs": ("gcs.client", "GcsBackend", "gcs"),
    "az": ("azure.client", "AzureBackend", "azure"),
    "abfs": ("azure.client", "AzureBackend", "azure"),
    "abfss": ("azure.client", "AzureBackend", "azure"),
}
_OBSTORE = "obstore"
_HADOOP_NAMES = {"s3n": "s3", "s3a": "s3", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs"}
# Of fsspec's or botocore's `**kwargs`.
_HIDDEN_OPTIONS = frozenset(
    {"asynchronous", "loop", "batch_size", "skip_instance_cache", "use_listings_cache", "listings_expiry_time"}
    | {"max_paths", "profile", "session_vars", "event_hooks", "include_builtin_handlers"}
)


def split_url(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Open a URL's filesystem, which may look for credentials; return it with the path (`bucket/key`).

    Raises InvalidUrl, InvalidInput (an option), NotSupported (protocol, package), AccessDenied, or Unavailable.
    """
    plain = check_url(url).removeprefix("cas::")
    protocol, separator, rest = plain.partition("://")
    if separator:
        name = _HADOOP_NAMES.get(protocol, protocol)
        if name not in _BACKENDS:
            raise _unsupported_protocol(protocol, plain)
        plain = f"{name}://{rest}"
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise InvalidInput(f"storage_options={storage_options!r} must be a dict, e.g. storage_options={{'anon': True}}")
    options = dict(storage_options or {})
    client = options.pop("client", None)
    try:
        fs, path = _open_filesystem(plain, options) if client is None else _open_with_client(client, plain, options)
    except ImportError as error:
        raise _missing_extra(protocol if client is None else client) from error
    except CasError:
        raise
    except (ValueError, TypeError) as error:
        raise InvalidUrl(f"{url!r} cannot be opened: {error}") from error
    except Exception as error:
        if refusal := _opening_error(url, error):
            raise refusal from error
        raise
    if not path.strip("/"):
        raise InvalidUrl(f"{url!r} must name a bucket or folder: write e.g. s3://bucket/folder")
    return fs, check_root(path)


def _open_filesystem(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return a URL's filesystem and path; an option unknown or contradicting the URL's raises InvalidInput."""
    from fsspec.core import get_filesystem_class, split_protocol  # noqa: PLC0415 - a third of our import

    # `url_to_fs` takes a multi-region access point's `::` for a chain of URLs.
    kind = get_filesystem_class(split_protocol(url)[0] or "file")
    check_options(kind, options)
    url_options = kind._get_kwargs_from_urls(url)  # noqa: SLF001
    return kind(**merged_options(url_options, options, ("the URL", "storage_options"))), kind._strip_protocol(url)  # noqa: SLF001


def _opening_error(url: str | os.PathLike[str], error: Exception) -> CasError | None:
    summary = f"{url!r} cannot be opened, and nothing was written: {type(error).__name__}"
    if isinstance(error, OSError):  # its text may contain the token
        return Unavailable(f"{summary}; check the network, and that the file given as `token` exists")
    if isinstance(error, KeyError) or type(error).__module__.startswith("google.auth."):
        return AccessDenied(f"{summary}: {error}; check token and project, or the credentials of this machine")
    return None


def _open_with_client(client: object, url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return obstore's filesystem and path of an `s3://` URL.

    Any `client` except 'obstore' raises InvalidInput, other protocols and access points NotSupported.
    """
    if client != _OBSTORE:
        raise InvalidInput(f"client={client!r} is not a known client: give client='obstore', or leave it out")
    if not url.startswith("s3://"):
        raise NotSupported(f"obstore serves s3:// here, not {url!r}: leave client='obstore' out")
    if url.startswith("s3://arn:"):
        raise NotSupported(
            f"{url!r} is an access point, which needs s3fs: leave client='obstore' out, or use its alias"
        )
    kind = import_module("fsspec_cas.backends.obstore.client").S3OverObstore
    return kind(**options), kind._strip_protocol(url)  # noqa: SLF001


def backend_for(fs: Any) -> Backend:
    """Return a new backend for an fsspec filesystem, or a `cas` filesystem's own.

    Raises NotSupported for the protocol, InvalidInput for an option.
    """
    own: Backend | None = vars(fs).get("cas_backend")
    if own is not None:
        return own
    if any(kind.__module__ == "obstore.fsspec" for kind in type(fs).__mro__):
        lean: Callable[[Any], Backend] = import_module("fsspec_cas.backends.obstore.client").LeanS3Backend
        return lean(fs)
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
    for protocol in protocols:
        if protocol in _BACKENDS:
            check_options(type(fs), fs.storage_options)
            module, name, _ = _BACKENDS[protocol]
            kind: Callable[[Any], Backend] = getattr(import_module(f"fsspec_cas.backends.{module}"), name)
            return kind(fs)
    raise _unsupported_protocol(protocols[0], type(fs).__name__)


def _unsupported_protocol(protocol: str, subject: str) -> NotSupported:
    protocols = ", ".join(sorted(_BACKENDS))
    return NotSupported(f"no conditional writes for protocol {protocol!r} ({subject}); supported are: {protocols}")


def _missing_extra(protocol: str) -> NotSupported:
    extra = _OBSTORE if protocol == _OBSTORE else _BACKENDS[_HADOOP_NAMES.get(protocol, protocol)][2]
    subject = "client='obstore'" if protocol == _OBSTORE else f"{protocol}://"
    return NotSupported(f"{subject} needs a package that is not installed: install the extra {extra!r} of fsspec-cas")


def service_key(backend: Backend) -> object:
    """Key, equal only for backends that send the same requests to the same service; options are hashed."""
    if type(backend).__module__ in ("fsspec_cas.backends.local", "fsspec_cas.backends.memory"):
        return backend.name
    fs = getattr(backend, "_given", None)  # fsspec creates an instance per thread
    if fs is None:
        return weakref.ref(backend)
    options = repr((fs.storage_args, sorted(fs.storage_options.items())))
    return type(fs), hashlib.blake2b(options.encode(), digest_size=16).hexdigest()  # may hold a secret


def is_remote(backend: Backend) -> bool:
    return bool(getattr(backend, "remote", not backend.blocking))


def off_thread(backend: Backend) -> Backend:
    return _OffThread(backend) if backend.blocking else backend


class _OffThread(Relay):
    def __init__(self, inner: Backend) -> None:
        super().__init__(inner, blocking=False)
        self._inline = Inline(Machine())
        if hasattr(inner, "endpoint"):
            self.endpoint = inner.endpoint

    async def relay(self, name: str, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await on_thread(lambda: self._inline.run(ask()), runs_to_end=True)


def check_options(kind: Any, options: Mapping[str, Any]) -> None:
    """Raise InvalidInput for options that the filesystem class `kind` lacks, or an `endpoint_url` without a scheme.

    Other values, which may be secret, are not shown.
    """
    names = _option_names(kind)
    for name in options:
        if name not in names:
            from difflib import get_close_matches  # noqa: PLC0415

            alike = get_close_matches(str(name), sorted(names), n=1)
            hint = f"did you mean {alike[0]}?" if alike else f"there are {', '.join(sorted(names))}"
            raise InvalidInput(f"storage option {name!r} is unknown to {kind.__name__}: {hint}")
    client = options.get("client_kwargs")
    for settings in (options, client if isinstance(client, Mapping) else {}):
        endpoint = settings.get("endpoint_url")
        if isinstance(endpoint, str) and endpoint and "://" not in endpoint:
            raise InvalidInput(
                f"endpoint_url={endpoint!r} has no scheme: write https://{endpoint}, or http://{endpoint}"
            )


def merged_options(first: Mapping[str, Any], second: Mapping[str, Any], names: tuple[str, str]) -> dict[str, Any]:
    for name in first.keys() & second.keys():
        if first[name] != second[name]:
            raise InvalidInput(f"storage option {name!r} differs between {names[0]} and {names[1]}: give it once")
    return {**first, **second}


@cache
def _option_names(kind: Any) -> frozenset[str]:
    named: set[str] = set()
    for base in kind.__mro__:
        if "__init__" in vars(base):
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            named |= {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    return frozenset((named - {"self"}) | _HIDDEN_OPTIONS)
