"""URLs of stores: checks one before its store is opened, and writes that of an open store."""

from __future__ import annotations

import re

from fsspec_cas.arguments import as_text, checked, normalized
from fsspec_cas.errors import InvalidUrl

_LOCAL = ("file", "local")
_PASSWORD = re.compile(r"((?:cas::)?[\w.+-]+:/{1,2})(?!/|arn:)[^/?#@]*:[^@]*@")
_ARN = re.compile(r"^(arn:aws[^/:]*:s3[^/:]*:[^/:]*:\d{12}:(?:accesspoint|outpost))/([^/]+)(?:/(accesspoint)/([^/]+))?")
_SECRET = re.compile(r"[?&]([^=&]*(?:secret|token|passw|pwd|sig|credential|key)[^=&]*)=", re.IGNORECASE)
_PROTOCOLS = {"gcs": "gs", "azure": "az", "local": "file"}


def check_url(url: object) -> str:
    """Check a store's URL or a local path; return it without needless slashes and `.` steps.

    Raises:
        InvalidUrl: it is empty, no URL or path, a path with a query, or has outer blanks, a step "..", or a secret.

    >>> check_url("s3://bucket//x/./y/")
    's3://bucket/x/y'
    >>> check_url("s3:/bucket/x")
    Traceback (most recent call last):
    ...
    fsspec_cas.errors.InvalidUrl: 's3:/bucket/x' is neither a URL nor a path: write s3://bucket/x for a URL, ...
    """
    url = as_text(url, InvalidUrl)
    _check_secrets(url)
    plain = url.removeprefix("cas::")
    if not plain.strip():
        raise InvalidUrl(
            f"{url!r} must name a bucket or folder: write e.g. s3://bucket/folder, or ./folder for a local one"
        )
    protocol, separator, rest = plain.partition("://")
    if not separator:
        _check_local(plain)
        if "?" in plain:
            raise InvalidUrl(
                f"{url!r} is a bare path, which has no options: give them as arguments, or behind a URL "
                "(file:///folder?...); a folder with a '?' in its name is written file:///..."
            )
    elif protocol in _LOCAL and not rest.startswith("/"):
        raise InvalidUrl(f"{url!r} has no absolute path: write {protocol}:///{rest}, or ./{rest} for a relative one")
    checked(plain, InvalidUrl)
    path, question, query = plain.partition("?")
    prefix = "cas::" if url.startswith("cas::") else ""
    return f"{prefix}{_normalized_url(path)}{question}{query}"


def _normalized_url(url: str) -> str:
    """Return a URL or path without empty and `.` steps; the bucket stays, and a `./` that protects a colon."""
    protocol, separator, rest = url.partition("://")
    if not separator:
        return (
            f"./{normalized(url)}" if url.startswith("./") and ":" in url.partition("/")[2] else normalized(url) or url
        )
    if protocol in (*_LOCAL, "memory"):
        return f"{protocol}://{normalized(rest)}"
    bucket, slash, path = with_colons(rest).partition("/")
    folded = normalized(path).lstrip("/")
    if not bucket:  # fsspec takes s3:///bucket/path for s3://bucket/path
        return url
    return f"{protocol}://{bucket}{slash if folded else ''}{folded}"


def _check_secrets(url: str) -> None:
    if password := _PASSWORD.match(url):
        masked = f"{password[1]}***@{url[password.end() :]}"
        raise InvalidUrl(f"{masked!r} has a password in it: leave it out, and give credentials as storage options")
    if secret := _SECRET.search(url):
        masked = f"{url[: secret.start()]}{secret[0][0]}{secret[1]}=***"
        raise InvalidUrl(f"{masked!r} has a secret in it: leave it out, and give credentials as storage options")


def _check_local(path: str) -> None:
    """Raise InvalidUrl for a path whose first step has a colon: a Windows path, or a URL without `://`.

    `file:/x` passes.
    """
    first = path.partition("/")[0]
    protocol, colon, _ = first.partition(":")
    rest = path[len(protocol) + len(colon) :]
    if not colon or (protocol in _LOCAL and rest.startswith("/")):
        return
    if len(protocol) == 1 and protocol.isalpha():
        raise InvalidUrl(f"{path!r} is a path of Windows, where local files have no conditional writes; write ./{path}")
    raise InvalidUrl(
        f"{path!r} is neither a URL nor a path: write {protocol}://{rest.lstrip('/')} for a URL, "
        f"or ./{path} for a local path with a colon in its first step"
    )


def with_colons(path: str) -> str:
    """Write an S3 access point's ARN, if any, with colons."""
    return _ARN.sub(lambda arn: ":".join(part for part in arn.groups() if part), path)


def url_of(kind: str, root: str) -> str:
    return f"{_PROTOCOLS.get(kind, kind)}://{root}"
