"""What a consumer has not seen yet: which commits, and which rows changed between two states of a table.

A consumer keeps a checkpoint, a time: it has seen the commits up to there. Commits finish in another order than they
begin, and RFC-22 leaves three ways to deal with that:

    order       checkpoint is     a commit is given when              a late finisher is
    completion  a completion time it is completed                     given when it completes
    fenced      a begin time      all that began before it are done   waited for: nothing passes a pending write
    begin       a begin time      it is completed                     MISSED, if a later one was given before

The first two miss nothing. Times of completion are made under the table lock, above everything on the timeline, so that
what completes later has a later one. A begin time exceeds what was completed when it was taken, so that no write which
begins later comes before a commit that was given; one that is pending holds the fence until it is completed or rolled
back. The third is what Hudi's readers did before 1.0, for those who must agree with them.

Source: Hudi RFC-22; `IncrementalQueryAnalyzer`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from lockprovider.table.format.instant import Action, Instant
from lockprovider.table.format.metadata import CommitMetadata
from lockprovider.table.format.schema import COMMIT_SEQNO, RECORD_KEY
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import rewound

OPERATION = "_operation"
INSERT, UPDATE, DELETE = "insert", "update", "delete"
_ID = (RECORD_KEY, COMMIT_SEQNO)
# Not a compaction: it changes no row, and whatever order it comes in, before and after it the rows are the same.
_FENCES = (Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT, Action.CLUSTERING)


class Order(str, Enum):
    """In which order commits are given to a consumer; see the module.

    >>> rows = pa.table({"id": [1]})
    >>> table = Table.create("memory://docs/trips", TableSpec("trips", rows, "id"))
    >>> len(table.changes(order=Order.FENCED).commits)
    1
    """

    COMPLETION = "completion"
    FENCED = "fenced"
    BEGIN = "begin"

    def time_of(self, done: Instant) -> str:
        """What a checkpoint is compared with."""
        return (done.completion or "") if self is Order.COMPLETION else done.begin


@dataclass(frozen=True, slots=True)
class Window:
    """The commits that a consumer is given, with the table's states before and after them.

    `checkpoint` is where the consumer stands then: of the last of these commits, or where it stood before.
    """

    commits: tuple[Instant, ...]
    checkpoint: str
    before: Timeline
    then: Timeline


def latest_checkpoint(timeline: Timeline, order: Order) -> str:
    """The checkpoint of a consumer that has seen all completed writes; empty if there are none."""
    return max(map(order.time_of, timeline.writes), default="")


def window(timeline: Timeline, after: str, until: str, order: Order) -> Window:
    """The commits with a time in (after, until], as far as this order gives them; empty `after` is the beginning."""
    fence = min(timeline.pending(*_FENCES), default="") if order is Order.FENCED else ""
    passed = [i for i in timeline.writes if not fence or i.begin < fence]
    new = tuple(sorted((i for i in passed if after < order.time_of(i) <= until), key=order.time_of))
    checkpoint = max((order.time_of(i) for i in new), default=after)
    return Window(
        commits=new,
        checkpoint=checkpoint,
        before=rewound(timeline, lambda i: order.time_of(i) <= after),
        then=rewound(timeline, lambda i: order.time_of(i) <= checkpoint),
    )


def touched(commits: Iterable[CommitMetadata]) -> dict[str, frozenset[str]]:
    """The file groups that commits wrote or ended, by partition."""
    groups: dict[str, set[str]] = {}
    for partition, file_id in (group for metadata in commits for group in metadata.file_groups):
        groups.setdefault(partition, set()).add(file_id)
    return {partition: frozenset(groups[partition]) for partition in sorted(groups)}


def changed_rows(old: pa.Table, new: pa.Table) -> pa.Table:
    """What became of the rows of one partition, with the columns of `new` and `OPERATION` before them.

    Both have Hudi's columns. A row version has a key and a sequence number of its own, which it keeps when a commit
    only carries it over to another file; so a rewrite, or a clustering, is no change. An update shows the new row, a
    delete the last one there was. A key that came and went in between does not show.
    """
    old_ids, new_ids = _ids(old), _ids(new)
    arrived = new.filter(pc.invert(pc.is_in(new_ids, value_set=old_ids)))
    left = old.filter(pc.invert(pc.is_in(old_ids, value_set=new_ids)))
    arrived_keys, left_keys = _keys(arrived), _keys(left)
    deleted = left.filter(pc.invert(pc.is_in(left_keys, value_set=arrived_keys)))
    known = pc.is_in(arrived_keys, value_set=left_keys)
    return pa.concat_tables(
        [
            _labelled(arrived, pc.if_else(known, UPDATE, INSERT)),
            _labelled(deleted.select(arrived.column_names), pa.repeat(DELETE, deleted.num_rows)),
        ]
    )


def _ids(rows: pa.Table) -> pa.Array:
    key, number = (rows.column(name).combine_chunks().fill_null("") for name in _ID)
    return pc.binary_join_element_wise(number, key, "/")  # a number has no slash


def _keys(rows: pa.Table) -> pa.Array:
    return rows.column(RECORD_KEY).combine_chunks()


def _labelled(rows: pa.Table, labels: pa.Array) -> pa.Table:
    return rows.add_column(0, pa.field(OPERATION, pa.string()), labels)
