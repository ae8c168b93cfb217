"""The guides are followed from top to bottom, each in a folder of its own that stands for the bucket.

The guide with Spark is followed by `table/engines/spark/test_guide_in_spark.py`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from servers.seaweedfs import SeaweedFS
from test_documents import ROOT, text_of
from typed import MAINS, typed

from fsspec_cas.testing import Gateway
from lockprovider.table import KeepCommits, Table, TableSpec

GUIDES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("*/guides/*.md"))
WITH_SPARK = "lockprovider/guides/share-a-table.md"
POLICIES = "lockprovider/guides/bucket-policies.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PLAIN = ("json", "terraform", "text")

# What stands for programs that are not here. Terraform's sends states to the backend that it is told.
_DONE = "#!/bin/sh\nexit 0\n"
_TERRAFORM = f"""#!{sys.executable}
import base64, os, sys, urllib.request
words = sys.argv[1:]
state = b'{{"version": 4, "lineage": "l", "serial": %d}}'
if words == ["state", "pull"]:
    print((state % 2).decode())
if words == ["apply"] or words[:2] == ["state", "push"]:
    data = state % 1 if words == ["apply"] else open(words[-1], "rb").read()
    login = os.environ["TF_HTTP_USERNAME"] + ":" + os.environ["TF_HTTP_PASSWORD"]
    headers = {{"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}}
    urllib.request.urlopen(urllib.request.Request(os.environ["TF_HTTP_ADDRESS"], data, headers, method="POST"))
"""
PROGRAMS = {
    **dict.fromkeys(("nightly.sh", "compactor.sh", "migrate.sh", "bin/spark-submit"), _DONE),
    "bin/pip": "#!/bin/sh\nmkdir -p dist && touch dist/fsspec_cas-0-py3-none-any.whl\n",
    "bin/terraform": _TERRAFORM,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the bucket in it, and the programs that guides run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    for name, text in PROGRAMS.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / "bucket").mkdir()
    ours = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{ours}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def follow(guide: str, folder: Path, names: dict[str, Any]) -> None:
    """Run the guide's blocks in their order, Python's as in one session."""
    for language, block in _BLOCK.findall(text_of(guide)):
        body = block.replace("election.run(main)", "")  # tests/lockprovider/recipes/test_readme_examples.py runs it
        body = body.replace('"target_protocol": "s3"', '"target_protocol": "file"')
        body = body.replace("%FT%TZ", "%FT%T.%3NZ")  # the whole guide may take less than a second
        local = body.replace("s3://bucket", f"{folder}/bucket")
        if language == "python":
            exec(compile(local, guide, "exec"), names)  # noqa: S102 - that is the point
        elif language == "sh":
            for text in [local] if "<<" in local or "=$(" in local else local.splitlines():
                run(text)
        else:
            assert language in _PLAIN, language


def run(text: str) -> None:
    """Run shell text, a plain command of ours in a fork, which is quicker than a shell."""
    words = shlex.split(text, comments=True)
    if words[0] in MAINS and not any(word in text for word in ("|", "$", ">")):
        done = typed(words[0], *words[1:])
    else:
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], capture_output=True, check=False)
    assert done.returncode == 0, f"{text}\n{done.stdout.decode()}\n{done.stderr.decode()}"


def prepare(guide: str, folder: Path) -> None:
    """Make what the guide's reader has already."""
    schema = pa.schema([("id", pa.int64()), ("city", pa.string())])
    if guide.endswith(("emr-and-glue.md", "dynamodb.md")):
        for name in ("trips", "jvm"):
            Table.create(folder / "bucket" / name, TableSpec(name, schema, "id"))
    if guide.endswith("elect-a-leader.md"):
        Table.create(folder / "bucket" / "trips", TableSpec("trips", schema, "id"))
    if guide.endswith("lost-response.md"):
        (folder / "bucket/orders").mkdir()
        (folder / "bucket/orders/state").write_text("paid")


@pytest.mark.parametrize("guide", [guide for guide in GUIDES if guide != WITH_SPARK])
def test_guide_can_be_followed(guide: str, here: Path) -> None:
    prepare(guide, here)
    names: dict[str, Any] = {}
    follow(guide, here, names)
    for name in [name for name in names if name.startswith("test_")]:
        names[name]()


@pytest.mark.parametrize("guide", GUIDES)
def test_guide_is_short(guide: str) -> None:
    assert text_of(guide).count("\n") <= 60
    assert text_of(guide).startswith("# ")


# -- policies ----------------------------------------------------------------------------------------------------------


def allowed(title: str) -> tuple[set[str], str]:
    """The actions on objects of the policy with this statement, and the pattern of its resources."""
    for body in (body for language, body in _BLOCK.findall(text_of(POLICIES)) if language == "json"):
        statements = {one["Sid"]: one for one in json.loads(body)["Statement"]}
        if title in statements:
            actions = {action for one in statements.values() for action in one["Action"]}
            return actions, statements[title]["Resource"].removeprefix("arn:aws:s3:::")
    raise LookupError(title)


def action_of(method: str, target: str) -> str:
    """The permission that S3 asks for by this request."""
    path, _, query = target.partition("?")
    if method in {"GET", "HEAD"}:
        return "s3:GetObject" if path.strip("/").count("/") else "s3:ListBucket"
    if method == "DELETE" and "uploadId" in query:
        return "s3:AbortMultipartUpload"
    return "s3:DeleteObject" if method == "DELETE" or query.startswith("delete") else "s3:PutObject"


@pytest.fixture
def asked(seaweedfs: SeaweedFS) -> Iterator[tuple[Gateway, Gateway]]:
    """Two ways to one server, each with its own count: a writer's last deletes come in the background."""
    host, _, port = seaweedfs.storage_options["endpoint_url"].removeprefix("http://").partition(":")
    with Gateway(host, int(port)) as for_writers, Gateway(host, int(port)) as for_readers:
        yield for_writers, for_readers


def test_policies_allow_the_requests_of_each_role(asked: tuple[Gateway, Gateway], seaweedfs: SeaweedFS) -> None:
    place = seaweedfs.new_prefix()
    writer, reader = ({**seaweedfs.storage_options, "endpoint_url": gateway.endpoint} for gateway in asked)
    rows = pa.table({"id": [1, 2], "v": [1, 2]})
    table = Table.create(f"{place}/trips", TableSpec("trips", rows, "id", buckets=1), storage_options=writer)
    for _ in range(3):
        table.upsert(rows)
    table.clean(KeepCommits(1))
    table.restore(table.version)
    same = Table.open(f"{place}/trips", storage_options=reader)
    assert (same.count(), same.changes().to_arrow().num_rows) == (2, 2)
    for title, gateway in zip(("Writer", "Reader"), asked, strict=True):
        requests = list(gateway.requests)
        actions, pattern = allowed(title)
        assert {action_of(*request) for request in requests} <= actions
        inside = [target.partition("?")[0].removeprefix("/") for _, target in requests]
        prefix = f"{place.removeprefix('s3://')}/trips"
        wrong = {path for path in inside if path.count("/") and not path.startswith(prefix)}
        assert wrong == set()
        assert fnmatchcase("bucket/trips/.hoodie/x", pattern)
