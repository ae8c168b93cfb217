"""Where `cas` is tried: a target protocol, its options, and a folder in it that is empty."""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import fsspec
import pytest

from fsspec_cas import OutcomeUnknown

STORES = ("memory", "local", "ministack", "seaweedfs", "fake_gcs", "azurite")


@dataclass
class Place:
    protocol: str
    folder: str
    options: dict[str, Any] = field(default_factory=dict)
    unsigned: bool = False

    @property
    def url(self) -> str:
        return f"cas::{self.protocol}://{self.folder}"

    @property
    def plain(self) -> Any:
        """The target alone, as another program would have it."""
        return fsspec.filesystem(self.protocol, skip_instance_cache=True, **self.options)

    def cas(self, **options: Any) -> Any:
        return fsspec.filesystem("cas", target_protocol=self.protocol, target_options=self.options, **options)

    def cas_of_this_loop(self) -> Any:
        """For async callers: fsspec keeps targets, and they keep connections of the loop that they were used on."""
        options = {**self.options, "skip_instance_cache": True}
        return fsspec.filesystem(
            "cas", target_protocol=self.protocol, target_options=options, asynchronous=True, skip_instance_cache=True
        )

    def deletes(self) -> AbstractContextManager[object]:
        """Around a delete at the right version: the answers of some emulators do not show that the store gave them."""
        return pytest.raises(OutcomeUnknown, match="no upload id") if self.unsigned else nullcontext()

    @property
    def storage_options(self) -> dict[str, Any]:
        """For a chained URL."""
        return {self.protocol: self.options}


def place(request: Any, name: str) -> Place:
    if name == "memory":
        return Place("memory", f"/cas-{uuid.uuid4().hex}")
    if name == "local":
        return Place("file", str(request.getfixturevalue("tmp_path")), {"auto_mkdir": True})
    server = request.getfixturevalue(name)
    folder = f"{server.bucket}/{uuid.uuid4().hex}"
    return Place(server.protocol, folder, server.storage_options, unsigned=name == "fake_gcs")
