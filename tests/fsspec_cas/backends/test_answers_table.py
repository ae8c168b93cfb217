"""The README's table of the answers that count is the data by which they are judged."""

from __future__ import annotations

from pathlib import Path

from fsspec_cas.backends.azure.answers import AZURE_CODES, AZURE_STATUSES
from fsspec_cas.backends.gcs.answers import GCS_STATUSES, KINDS
from fsspec_cas.backends.meaning import ANSWERS
from fsspec_cas.backends.reply import StatementKind, Verb
from fsspec_cas.backends.s3.answers import FORMS, S3_CODES

README = Path(__file__).parents[3] / "fsspec_cas" / "SPECIFICATION.md"
AGAIN = (StatementKind.DONE, StatementKind.CONFLICT, StatementKind.BUSY)


def answers_table() -> str:
    lines = ["| request | S3: done | S3: refused | GCS: done | GCS: refused | Azure: done | Azure: refused |"]
    lines.append("|---|---|---|---|---|---|---|")
    for verb in FORMS:  # the answer to the end of an upload is not looked at
        form = FORMS[verb]
        shape = f"`{form.root}`" if form.root else "no body" if form.empty else "ETag, length"
        s3 = (f"{form.statuses[0]}, {shape}", refused(verb, S3_CODES))
        gcs = (f"`{KINDS[verb]}`" if verb in KINDS else "-", refused(verb, GCS_STATUSES))
        azure = (str(AZURE_STATUSES.get(verb, "-")), refused(verb, AZURE_CODES))
        lines.append(f"| {verb.value} | {' | '.join((*s3, *gcs, *azure))} |")
    return "\n".join(lines)


def refused(verb: Verb, said: object) -> str:
    """The codes that this request has a meaning for, besides "again"."""
    meant = [str(code) for code, kind in said.items() if (verb, kind) in ANSWERS and kind not in AGAIN]
    return ", ".join(meant) or "-"


def test_readme_table_of_answers_is_the_data_of_the_code() -> None:
    assert answers_table() in README.read_text()
