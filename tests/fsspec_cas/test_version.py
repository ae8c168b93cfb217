from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsspec_cas import ABSENT, InvalidVersion, Store, Version


@given(st.text(min_size=1).filter(lambda name: ":" not in name), st.text(min_size=1))
def test_every_version_comes_back_from_its_text(backend: str, token: str) -> None:
    version = Version(backend, token)
    assert Version.parse(str(version)) == version
    assert pickle.loads(pickle.dumps(version)) == version


def test_token_may_hold_colons_and_quotes() -> None:
    assert Version.parse('s3:"a:b"') == Version("s3", '"a:b"')


@pytest.mark.parametrize("text", ["", ":", "s3", "s3:", ":token", "no colon at all"])
def test_invalid_version_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidVersion) as caught:
        Version.parse(text)
    assert repr(text) in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("ask", ["put_if_absent", "read", "head"])
def test_answer_given_in_place_of_its_version_is_refused_without_its_bytes(ask: str) -> None:
    store = Store.from_url("memory://unit-version/answers")
    store.delete("a")
    made = store.put_if_absent("a", b"secret")
    answer = made if ask == "put_if_absent" else getattr(store, ask)("a")
    with pytest.raises(InvalidVersion) as caught:
        store.put_if_match("a", b"2", answer)
    assert f"a {type(answer).__name__} is not a version: give its `version`, '{made.unwrap()}'" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert store.put_if_match("a", b"2", answer.version).unwrap() != made.unwrap()


def test_absent_given_as_a_version_is_refused_and_names_the_create() -> None:
    store = Store.from_url("memory://unit-version/absent")
    with pytest.raises(InvalidVersion, match=r"^ABSENT is not a version.*put_if_absent"):
        store.put_if_match("a", b"1", ABSENT)  # type: ignore[arg-type]


def test_versions_of_two_kinds_of_store_differ_and_have_no_order() -> None:
    assert Version("s3", "1") != Version("gcs", "1")
    assert len({Version("s3", "1"), Version("s3", "1"), Version("gcs", "1")}) == 2
    with pytest.raises(TypeError):
        assert Version("s3", "1") < Version("s3", "2")  # type: ignore[operator]


def test_absent_is_equal_to_itself_after_pickling_and_to_no_version() -> None:
    assert pickle.loads(pickle.dumps(ABSENT)) == ABSENT
    assert Version("s3", "1") != ABSENT
