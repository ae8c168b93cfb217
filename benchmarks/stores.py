"""What the servers that can be had here really do with conditions, as `fsspec-cas probe` sees it.

    python -m benchmarks.stores                    # a markdown table; minutes more at first, which builds MinIO

Some of them ignore conditions and are there to be caught.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fsspec_cas.probe.probe import Report, probe

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
COLUMNS = {
    "create": ("create", "create refused", "create after delete", "create race"),
    "compare and swap": ("match", "match stale", "match foreign", "match absent", "match race"),
    "read of one state": ("whole reads", "modified", "listing"),
    "unchanged: no body": ("not modified",),
    "keeps the write's identity": ("identity",),
    "delete at a version": ("delete match", "delete refused"),
    "multipart create": ("upload", "upload refused", "upload race"),
    "equal bytes": ("equal bytes",),
}


def reports() -> Iterator[tuple[str, Report]]:
    """Start one server after the other, probe it, and yield its name and report; then a local folder and memory."""
    from servers.azurite import Azurite
    from servers.fakegcs import FakeGcs
    from servers.ministack import Ministack
    from servers.more_s3 import LocalBucket, Moto, Nanio
    from servers.negative import NegativeGcs, NegativeS3
    from servers.real_s3 import Minio, S3Proxy, Versity
    from servers.seaweedfs import SeaweedFS

    named = {
        "SeaweedFS": SeaweedFS,
        "MinIO": Minio,
        "Versity Gateway": Versity,
        "S3Proxy, on local files": S3Proxy,
        "ministack": Ministack,
        "moto": Moto,
        "Azurite": Azurite,
        "fake-gcs-server": FakeGcs,
        "localbucket": LocalBucket,
        "rclone serve s3": NegativeS3,
        "nanio": Nanio,
        "gcp-storage-emulator": NegativeGcs,
    }
    for name, kind in named.items():
        with kind() as server:
            yield name, probe(server.new_prefix(), server.storage_options)
    with tempfile.TemporaryDirectory() as folder:
        yield "local", probe(folder)
    yield "memory", probe("memory://probe/scratch")


def table(found: dict[str, Report]) -> Iterator[str]:
    """A row a store."""
    yield "| | " + " | ".join(COLUMNS) + " | safe for create-once | safe for locks |"
    yield "|---" * (len(COLUMNS) + 3) + "|"
    for name, report in found.items():
        cells = [_cell(report, names) for names in COLUMNS.values()]
        cells += ["**yes**" if safe else "**no**" for safe in (report.verdict.create_once, report.verdict.locks)]
        yield f"| {name} | " + " | ".join(cells) + " |"


def _cell(report: Report, names: tuple[str, ...]) -> str:
    """Return "yes", the known fact, "-" if something was skipped, or the first finding that is wrong."""
    findings = [report[name] for name in names]
    wrong = next((finding for finding in findings if finding.state in ("no", "failed")), None)
    if wrong is not None:
        return f"**no**: {wrong.name}"
    if any(finding.state == "skipped" for finding in findings):
        return "-"
    return next((finding.evidence for finding in findings if finding.state == "known"), "yes")


def main() -> None:
    """Probe them all."""
    # Read once, when gcsfs is imported: else its first call to an emulator waits for a gRPC service for a minute.
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    print("\n".join(table(dict(reports()))))


if __name__ == "__main__":
    main()
