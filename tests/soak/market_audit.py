"""What is wrong with the market's tables when all is over, by promise."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from lockprovider.demo import proof
from lockprovider.table import KeepVersions, Table
from lockprovider.table.doctor.rules import diagnose
from lockprovider.table.format.layout import Action, parse_base_file
from lockprovider.table.services import rollback as rollbacks
from soak.market import BEAT_S, MISSES, lists

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from soak.market import Market
    from soak.streams import Streams

Wrong = dict[str, list[str]]


def audit(market: Market, streams: Streams) -> Wrong:
    """By promise; empty lists if all were kept. Cleans up first, as any next writer would."""
    found = market.table.to_arrow()
    wrong = {
        "nothing fails": [*market.failures, *streams.died],
        "history": list(market.history.problems(lists(found))),
        "lists": differ(
            {name for entry in market.history.done for name in market.history.read[entry]}, {*lists(found)}
        ),
        "ordering": ordering(market.rated, found),
        "rows added": differ(market.log, _ids(found, "log")),
        "rows deleted": differ(market.gone, _ids(found, "gone")),
        "overwrites": differ({max(market.scratch)[1]} if market.scratch else set(), _values(found, "scratch")),
        "mirror": differ(_all(found), _all(streams.mirror.to_arrow())),
        "copy": once(market.log, streams.copy.to_arrow()["id"].to_pylist()),
    }
    time.sleep(BEAT_S * MISSES + 1)  # a time, not a condition: the dead do not tell that they are
    for name, table in (("market", market.table), ("mirror", streams.mirror), ("copy", streams.copy)):
        wrong |= {f"{promise} of {name}": what for promise, what in _left(table, market.options).items()}
    return wrong


def ordering(best: Mapping[str, tuple[int, str]], found: pa.Table) -> list[str]:
    """Where the row that is there is not the highest that was committed."""
    there = {row["id"]: (row["seq"], row["value"]) for row in found.to_pylist() if row["part"] == "rated"}
    return [
        f"{key}: {there.get(key)} is there, {row} was committed" for key, row in best.items() if there.get(key) != row
    ]


def _left(table: Table, options: dict[str, object]) -> Wrong:
    """What services leave, once the dead are dead for long enough."""
    before = _all(table.to_arrow())
    rollbacks.sweep(table)
    table.clean(KeepVersions(1))
    now = table.timeline()
    pending = [f"{action.value} {begin}" for action in Action for begin in now.pending(action)]
    bad = [finding.what for _, _, findings in diagnose(table) for finding in findings if finding.state == "wrong"]
    read = proof.read(table.url, options)
    read = read.select(table.schema().names) if before else table.schema().empty_table()
    return {
        "pending": [*pending, *(entry.path for entry in table.store.list(".hoodie/.heartbeat/"))],
        "doctor": bad,
        "rows after cleaning": differ(before, _all(table.to_arrow())),
        "hudi-rs": differ(before, _all(read)) + [f"{key} twice" for key, n in _keys(read).items() if n > 1],
        "files": differ({one.path for one in table.snapshot().slices}, _base_files(table)),
    }


def _base_files(table: Table) -> set[str]:
    paths = [entry.path for entry in table.data_files()]
    return {path for path in paths if parse_base_file(path.rpartition("/")[2]) is not None}


def _all(found: pa.Table) -> set[str]:
    return {str(tuple(row.values())) for row in found.to_pylist()}


def _keys(found: pa.Table) -> Counter[str]:
    return Counter(found["id"].to_pylist())


def _ids(found: pa.Table, part: str) -> set[str]:
    return set(found.filter(pc.equal(found["part"], part))["id"].to_pylist())


def _values(found: pa.Table, part: str) -> set[str]:
    return set(found.filter(pc.equal(found["part"], part))["value"].to_pylist())


def once(expected: set[str], there: list[str]) -> list[str]:
    """Where something is not there exactly once."""
    twice = [f"{key} is there {times} times" for key, times in Counter(there).items() if times > 1]
    return differ(expected, set(there)) + twice


def differ(expected: set[str], there: set[str]) -> list[str]:
    """Some of what is missing, and of what is too much."""
    missing = [f"{one} is missing" for one in sorted(expected - there)[:5]]
    return missing + [f"{one} is too much" for one in sorted(there - expected)[:5]]
