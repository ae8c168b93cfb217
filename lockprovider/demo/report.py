"""What came out of a run, as data and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lockprovider.demo import tally

if TYPE_CHECKING:
    from lockprovider.demo.compare import Comparison
    from lockprovider.demo.tally import Tally


@dataclass(frozen=True, slots=True)
class Death:
    """A pipeline that ended before its work did."""

    role: str
    status: int
    at_ms: int
    last_words: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """How it ended."""
        how = f"was killed by signal {-self.status}" if self.status < 0 else f"failed, status {self.status}"
        return f"{self.role} {how}"


@dataclass(frozen=True, slots=True)
class Report:
    """One run. `proof` is None if the reader could not read the table; `trouble` then says why."""

    url: str
    tallies: tuple[Tally, ...]
    deaths: tuple[Death, ...]
    proof: Comparison | None
    reader: str
    trouble: str
    picture: str
    took_s: float
    rolled_back: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if every pipeline finished and the proof holds."""
        return self.proof is not None and self.proof.equal and not self.deaths

    def to_json(self) -> dict[str, object]:
        """The report as a JSON-able mapping."""
        return {
            "ok": self.ok,
            "url": self.url,
            "took_s": round(self.took_s, 1),
            "pipelines": [t.to_json() for t in self.tallies],
            "deaths": [asdict(death) | {"sentence": death.sentence} for death in self.deaths],
            "proof": None if self.proof is None else asdict(self.proof) | {"equal": self.proof.equal},
            "reader": self.reader,
            "trouble": self.trouble,
            "rolled_back": list(self.rolled_back),
            "pending": list(self.pending),
            "picture": self.picture,
        }


def text(report: Report) -> str:
    """The report for people."""
    return "\n".join(
        [
            tally.table(report.tallies),
            "",
            *_deaths(report),
            *_proof(report),
            f"table    {report.url}",
            f"picture  {report.picture}",
            f"took     {report.took_s:.0f} s",
        ]
    )


def _deaths(report: Report) -> list[str]:
    lines: list[str] = []
    for death in report.deaths:
        lines.append(death.sentence + (". Its last words:" if death.last_words else ", without a word."))
        lines += [f"    {word}" for word in death.last_words]
    if report.rolled_back:
        lines.append(f"rolled back after its death: {', '.join(report.rolled_back)}")
    if report.pending:
        lines.append(f"left open, to be rolled back: {', '.join(report.pending)}")
    return [*lines, ""] if lines else []


def _proof(report: Report) -> list[str]:
    if report.proof is None:
        return [f"PROOF FAILED: {report.reader} cannot read the table: {report.trouble}"]
    proof = report.proof
    if proof.equal:
        return [
            (
                f"proof    {report.reader} reads {proof.found_rows:,} rows, "
                "equal row for row to the same three jobs in single-threaded pandas"
            )
        ]
    changed = ", ".join(f"{column} in {count:,} rows" for column, count in proof.changed.items())
    return [
        (
            f"PROOF FAILED: {report.reader} reads {proof.found_rows:,} rows, {proof.expected_rows:,} expected; "
            f"{proof.missing:,} missing, {proof.surplus:,} surplus, {proof.repeated:,} repeated; "
            f"different: {changed or 'nothing'}"
        ),
        *(
            f"    {' '.join(map(str, d.key))}  {d.column}: found {d.found}, expected {d.expected}"
            for d in proof.first[:20]
        ),
    ]
