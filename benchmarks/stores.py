"""What the servers that can be had here really do with conditions, as `fsspec-cas probe` sees it.

    python -m benchmarks.stores                    # about two minutes; a markdown table

Two of them ignore conditions and are there to be caught.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fsspec_cas.checks import CHECKS
from fsspec_cas.probe import Report, probe

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
MARKS = {"yes": "yes", "no": "**no**", "failed": "**failed**", "skipped": "-"}


def reports() -> Iterator[tuple[str, Report]]:
    """One server after the other."""
    from servers.azurite import Azurite
    from servers.fakegcs import FakeGcs
    from servers.ministack import Ministack
    from servers.negative import NegativeGcs, NegativeS3
    from servers.seaweedfs import SeaweedFS

    named = {
        "SeaweedFS": SeaweedFS,
        "ministack": Ministack,
        "Azurite": Azurite,
        "fake-gcs-server": FakeGcs,
        "rclone serve s3": NegativeS3,
        "gcp-storage-emulator": NegativeGcs,
    }
    for name, kind in named.items():
        with kind() as server:
            yield name, probe(server.new_prefix(), server.storage_options)
    with tempfile.TemporaryDirectory() as folder:
        yield "local", probe(folder)
    yield "memory", probe("memory://probe/scratch")


def table(found: dict[str, Report]) -> Iterator[str]:
    """A row a check; facts that are neither right nor wrong are in words."""
    yield "| | " + " | ".join(found) + " |"
    yield "|---" * (len(found) + 1) + "|"
    for check in CHECKS:
        cells = ((report[check.name].state, report[check.name].evidence) for report in found.values())
        yield f"| {check.proves} | " + " | ".join(MARKS.get(state, evidence) for state, evidence in cells) + " |"
    uses = ("create_once", "locks", "streams")
    for use, name in zip(uses, ("create-once", "locks", "creates in parts"), strict=True):
        verdicts = (getattr(report.verdict, use) for report in found.values())
        yield f"| **safe for {name}** | " + " | ".join("**yes**" if safe else "**no**" for safe in verdicts) + " |"


def main() -> None:
    """Probe them all."""
    # Read once, when gcsfs is imported: else its first call to an emulator waits for a gRPC service for a minute.
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    print("\n".join(table(dict(reports()))))


if __name__ == "__main__":
    main()
