"""Credentials that cannot be had: nothing is sent, and that is said at once, not "nobody knows" after the timeout.

As users meet it: a profile in AWS's own files, `Store.from_url`, a write.
"""

from __future__ import annotations

import sys

import google.auth.exceptions
import pytest
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.storage.blob.aio import BlobServiceClient
from google.auth.credentials import Credentials
from servers.wire import Wire, http
from test_sends_once import ask, azure, s3

from fsspec_cas import ABSENT, AccessDenied, Store, Unavailable

PROMPT_S = 30.0  # the timeout of a call that is over at once; whoever waits for it ends in another error
EXPIRED = http(
    400,
    b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>",
    Content_Type="application/xml",
)
STS = "<ErrorResponse><Error><Code>{}</Code><Message>no</Message></Error></ErrorResponse>"
PROFILES = {
    "missing profile": "",
    "process that fails": "credential_process = false",
    "process that is not there": "credential_process = /no/such/program",
    "process that prints no JSON": "credential_process = echo hello",
    "process that prints half": f"credential_process = {sys.executable} -c 'print(chr(123) + chr(125))'",
    "sso without a login": "sso_start_url = http://127.0.0.1:1\nsso_region = r\nsso_account_id = 1\nsso_role_name = n",
    "sso session that is not there": "sso_session = gone\nsso_account_id = 1\nsso_role_name = n\nsso_region = r",
    "role from a profile that is not there": "role_arn = arn:aws:iam::1:role/r\nsource_profile = gone",
    "role from an unknown source": "role_arn = arn:aws:iam::1:role/r\ncredential_source = Nowhere",
    "token file that is not there": "role_arn = arn:aws:iam::1:role/r\nweb_identity_token_file = /no/such/token",
    "half a key": "aws_access_key_id = k",
}


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """Writes a profile `broken` into files of AWS's own that nothing else is in."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))

    def write(text: str) -> None:
        section = f"[profile broken]\n{text}\n" if text else ""
        (tmp_path / "config").write_text(f"[default]\nregion = us-east-1\n{section}")

    return write


def opened(endpoint: str, profile: str = "broken") -> Store:
    return Store.from_url("s3://bucket/x", {"profile": profile, "endpoint_url": endpoint, "skip_instance_cache": True})


@pytest.mark.parametrize("name", PROFILES)
def test_profile_without_credentials_is_access_denied_before_any_request(profile, name):
    profile(PROFILES[name])
    with Wire(http(200)) as wire:
        store = opened(wire.endpoint)
        for call in (
            lambda: store.put_if_absent("a", b"", timeout=PROMPT_S),
            lambda: store.head("a", timeout=PROMPT_S),
        ):
            with pytest.raises(AccessDenied, match="nothing was sent"):
                call()
        assert wire.requests == []
    assert not store.backend._opening  # a lock for each event loop would stay


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (400, "ExpiredTokenException")])
def test_role_that_is_refused_is_access_denied(profile, monkeypatch, tmp_path, status, code):
    (tmp_path / "token").write_text("token")
    profile(f"role_arn = arn:aws:iam::1:role/r\nweb_identity_token_file = {tmp_path / 'token'}")
    refusal = http(status, STS.format(code).encode(), Content_Type="text/xml")
    with Wire(refusal) as sts, Wire(http(200)) as wire:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.endpoint)
        with pytest.raises(AccessDenied, match="nothing was sent"):
            opened(wire.endpoint).put_if_absent("a", b"", timeout=PROMPT_S)
        assert (sts.requests, wire.requests) == (["POST"], [])


def test_role_that_cannot_be_assumed_now_is_unavailable_and_not_unknown(profile, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    (tmp_path / "token").write_text("token")
    profile(f"role_arn = arn:aws:iam::1:role/r\nweb_identity_token_file = {tmp_path / 'token'}")
    with Wire(http(503)) as sts, Wire(http(200)) as wire:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.endpoint)
        with pytest.raises(Unavailable, match="no credentials"):
            opened(wire.endpoint).put_if_absent("a", b"", timeout=1.0)
        assert wire.requests == []


def test_expired_token_is_access_denied_though_s3_says_400():
    for call, args in (("put", (b"", ABSENT, "id")), ("get", (None,)), ("list_page", (None, None))):
        with pytest.raises(AccessDenied, match="ExpiredToken"):
            ask(s3, EXPIRED, call, *args)


class Failing:
    """A token credential of Azure's whose service says no, or does not answer."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def get_token(self, *_: object, **__: object) -> None:
        raise self.error

    async def close(self) -> None:
        """Nothing is open."""


def azure_with(error: Exception, endpoint: str):
    fs = azure(endpoint)
    fs.service_client = BlobServiceClient(endpoint.replace("http:", "https:"), credential=Failing(error))
    return Store.from_filesystem(fs, "container")


@pytest.mark.parametrize("error", [ClientAuthenticationError("no login"), ValueError("no key"), OSError("no file")])
def test_failing_azure_credential_is_access_denied_before_any_request(error):
    with Wire(http(200)) as wire:
        with pytest.raises(AccessDenied, match=str(error)):
            azure_with(error, wire.endpoint).put_if_absent("a", b"", timeout=PROMPT_S)
        assert wire.requests == []


def test_azure_credential_missing_for_now_is_unavailable_and_not_unknown():
    with Wire(http(200)) as wire:
        with pytest.raises(Unavailable, match="no credentials"):
            azure_with(ServiceRequestError("no way there"), wire.endpoint).put_if_absent("a", b"", timeout=0.5)
        assert wire.requests == []


class Unrefreshed(Credentials):
    """Google credentials whose refresh fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def refresh(self, request: object) -> None:
        raise self.error


def gcs_with(error: Exception, endpoint: str) -> Store:
    options = {"token": Unrefreshed(error), "project": "p", "endpoint_url": endpoint, "skip_instance_cache": True}
    return Store.from_url("gs://bucket/x", options)


@pytest.mark.parametrize(
    "error", [google.auth.exceptions.RefreshError("gone"), OSError("no file"), ValueError("no key")]
)
def test_failing_google_credentials_are_access_denied_before_any_request(error):
    with Wire(http(200)) as wire:
        with pytest.raises(AccessDenied, match=str(error)):
            gcs_with(error, wire.endpoint).put_if_absent("a", b"", timeout=PROMPT_S)
        assert wire.requests == []


def test_google_credentials_missing_for_now_are_unavailable_and_not_unknown():
    with Wire(http(200)) as wire:
        with pytest.raises(Unavailable, match="credentials could not be refreshed"):
            gcs_with(google.auth.exceptions.TransportError("no way"), wire.endpoint).put_if_absent(
                "a", b"", timeout=0.5
            )
        assert wire.requests == []


@pytest.mark.parametrize(("content", "kind"), [("{}", AccessDenied), (None, Unavailable)], ids=["no key", "no file"])
def test_invalid_google_token_is_refused_when_the_store_is_opened(monkeypatch, tmp_path, content, kind):
    """A gcsfs looks for credentials when it is made; what names no file it takes for a token, and asks Google."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    token = tmp_path / "secret.json"
    if content is not None:
        token.write_text(content)
    with pytest.raises(kind) as refused:
        Store.from_url("gs://bucket/x", {"token": str(token)})
    assert "'gs://bucket/x' cannot be opened" in str(refused.value)
    assert "token" in str(refused.value)
    assert "secret.json" not in str(refused.value)


def test_missing_google_credentials_are_access_denied_at_open(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with pytest.raises(AccessDenied, match="DefaultCredentialsError"):
        Store.from_url("gs://bucket/x", {"token": "google_default"})
