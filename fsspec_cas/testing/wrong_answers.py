"""HTTP answers that no store gave: of gateways, proxies, captive portals, caches and other services.

`WRONG_ANSWERS` maps a name to the raw bytes. `{portal}` in a `Location` stands for an address that answers every
request as a store would; a `Gateway` fills it in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

_HTML = b"<html><head><title>Sign in</title></head><body><h1>Welcome</h1></body></html>"
_XHTML = b'<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><body><p>Welcome</p></body></html>'
_INTERNAL = b'<?xml version="1.0"?><Error><Code>InternalError</Code><Message>try again</Message></Error>'
_NGINX = b"<html>\r\n<head><title>404 Not Found</title></head>\r\n<body><center>nginx</center></body></html>"
_DATE = "Sat, 21 Nov 2026 04:00:00 GMT"
_ETAG = '"900150983cd24fb0d6963f7d28e17f72"'
_PHRASES = {200: "OK", 302: "Found", 404: "Not Found", 503: "Service Unavailable"}


def http(status: int, body: bytes = b"", *, version: str = "1.1", length: bool = True, **headers: object) -> bytes:
    """An answer as bytes; `_` in the name of a header stands for `-`, and a tuple for a header that comes repeatedly.

    >>> http(204).decode().splitlines()[0]
    'HTTP/1.1 204 Answer'
    """
    lines = [f"HTTP/{version} {status} {_PHRASES.get(status, 'Answer')}"]
    if length and status != 204:
        lines.append(f"Content-Length: {len(body)}")
    for name, value in headers.items():
        each = value if isinstance(value, tuple) else (value,)
        lines += [f"{name.replace('_', '-')}: {one}" for one in each]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


def _text(status: int, text: str = "", kind: str = "text/plain") -> bytes:
    return http(status, text.encode(), Content_Type=kind)


def _page(status: int) -> bytes:
    return http(status, b"<html><body>%d</body></html>" % status, Content_Type="text/html")


def _json(status: int, value: object) -> bytes:
    return http(status, json.dumps(value).encode(), Content_Type="application/json")


def _xml(status: int, body: bytes) -> bytes:
    return http(status, body, Content_Type="application/xml")


def _interim(status: int, rest: bytes) -> bytes:
    return f"HTTP/1.1 {status} Interim\r\n\r\n".encode() + rest


_FAULT = b"<fault><faultstring>no route</faultstring></fault>"
_QUEUE = b"<ErrorResponse><Error><Code>AWS.SimpleQueueService.NonExistentQueue</Code></Error></ErrorResponse>"
_WHOLE = b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
_NOT_FOUND = {
    "404 text": _text(404, "404 page not found\n"),
    "404 nginx": http(404, _NGINX, Content_Type="text/html", Server="nginx"),
    "404 empty": _text(404),
    "404 json message": _json(404, {"message": "no Route matched with those values"}),
    "404 json detail": _json(404, {"detail": "Not Found"}),
    "404 json error": _json(404, {"error": "not found"}),
    "404 json role": _json(404, {"Code": "AssumeRoleUnauthorizedAccess", "Message": "role not found"}),
    "404 fault": _xml(404, _FAULT),
    "404 other service": _xml(404, _QUEUE),
    "404 after 100": _interim(100, _text(404, "404 page not found\n")),
    "404 after 103": _interim(103, _text(404, "404 page not found\n")),
    "404 two equal lengths": http(404, b"gone", length=False, Content_Length=(4, 4)),
    "410 page": _page(410),
}
_SUCCESS = {
    "200 html": http(200, _HTML, Content_Type="text/html"),
    "200 html etag": http(200, _HTML, Content_Type="text/html", ETag='"5f3c-1a"', Last_Modified=_DATE),
    "200 html weak etag": http(200, _HTML, Content_Type="text/html", ETag='W/"5f3c-1a"', Last_Modified=_DATE),
    "200 empty": _text(200),
    "200 empty etag": http(200, ETag=_ETAG),
    "200 two etags": http(200, ETag=(_ETAG, '"other"')),
    "200 json": _json(200, {}),
    "200 json status": _json(200, {"status": "ok"}),
    "200 error": _xml(200, _INTERNAL),
    "200 xhtml": _xml(200, _XHTML),
    "200 without length": http(200, _HTML, version="1.0", length=False, Content_Type="text/html"),
    "200 cut": http(200, _HTML, Content_Type="text/html").replace(b"Length: 7", b"Length: 9"),
    "200 cached": http(200, _HTML, Content_Type="text/html", ETag=_ETAG, Last_Modified=_DATE, Age=55),
    "200 other listing": _xml(
        200, _WHOLE + b"<Prefix>elsewhere</Prefix><IsTruncated>false</IsTruncated></ListBucketResult>"
    ),
    "200 listing without end": _xml(200, _WHOLE + b"</ListBucketResult>"),
    "202": _text(202),
    "204": http(204),
    "206 html": http(206, _HTML, Content_Type="text/html", Content_Range=f"bytes 0-{len(_HTML) - 1}/{len(_HTML)}"),
}
_REDIRECTS = {f"{status} redirect": http(status, Location="{portal}") for status in (301, 302, 303, 307, 308)}
_REDIRECTS |= {"304": http(304), "304 etag": http(304, ETag='"other"')}
_REFUSALS = {
    f"{status} page": _page(status)
    for status in (400, 401, 403, 405, 407, 408, 409, 411, 412, 413, 421, 425, 431, 451, 499, 501)
}
_REFUSALS |= {
    "401 challenge": http(401, WWW_Authenticate='Bearer authorization_uri="http://127.0.0.1:1/tenant"'),
    "403 empty": _text(403),
    "412 empty": _text(412),
}
_FAILURES = {f"{status} page": _page(status) for status in (429, 500, 502, 503, 504, 505, 520)}
_FAILURES |= {"no http": b"SSH-2.0-OpenSSH_9.2\r\n", "nothing": b""}

WRONG_ANSWERS: Mapping[str, bytes] = MappingProxyType(_NOT_FOUND | _SUCCESS | _REDIRECTS | _REFUSALS | _FAILURES)
"""Name -> raw bytes of an answer that no store gave.

>>> len(WRONG_ANSWERS) > 60
True
"""
