"""Rolling back what did not commit: an instant of one's own that lost, or a dead writer's.

What another may commit is rolled back under the table lock, so two cleaners do not meet; every step may be repeated, so
a cleaner that dies halfway leaves a planned rollback that the next one finishes. Such a rollback is on the timeline as
Hudi writes it: its plan, then its completion, while the victim's own files are gone.

What nobody can commit any more its writer takes back alone (`take_back_alone`): without the lock, whose log goes on,
and without a trace on the timeline.

Source: Hudi `BaseRollbackActionExecutor`; RFC-22, lazy cleaning of failed writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockprovider import Lease
from lockprovider.table.format.instant import Action, Instant, InstantState
from lockprovider.table.format.layout import (
    TIMELINE,
    heartbeat_path,
    join,
    names_by_partition,
)
from lockprovider.table.format.metadata import (
    RollbackMetadata,
    RollbackPlan,
    RollbackRequest,
    RolledBackPartition,
    decode_rollback_plan,
    encode_rollback,
    encode_rollback_plan,
)
from lockprovider.table.services import listing, plans
from lockprovider.table.services.plans import dead_among
from lockprovider.table.timeline.timeline import Timeline

if TYPE_CHECKING:
    from lockprovider.table.state.context import TableContext


def roll_back(table: TableContext, begin: str, *, only_if_dead: bool = False, own: bool = False) -> None:
    """Remove a pending instant and all its files. A completed instant, or one that is gone, is left alone.

    `own`: the caller is its writer, so that nobody else can commit it meanwhile.

    Raises:
        NotAcquired, CasError: the lock or the store; may be repeated.
    """
    with table.lock.acquire() as lease:
        now = table.listed_timeline()
        if now.written_at(begin) is not None:
            return
        if not now.pending_files(begin):
            if own and begin > now.first_active:  # not archived, so rolled back while this writer wrote on
                plans.remove_files(table, begin, files_of(table, begin))
                listing.unlist(table, begin)
            return
        if only_if_dead and not dead_among(table, {begin}):
            return
        if (own or only_if_dead) and _in_good_hands(table, now, begin):
            if own:
                plans.remove_files(
                    table, begin, files_of(table, begin)
                )  # their plan has not got what was written after it
            return
        execute(table, lease, now, begin, fenced=not own)
    table.tell("rolled_back", begin)


def take_back_alone(table: TableContext, begin: str, files: Sequence[str]) -> bool:
    """Remove a pending instant of one's own that nobody can commit any more, without the lock; `files` are all it has.

    A writer that dies halfway leaves a pending instant, as any other does that dies.

    Returns:
        False: it is not pending, or others roll it back; nothing was removed.

    Raises:
        CasError: the store failed; may be repeated.
    """
    prefix = f"{TIMELINE}/"
    listed = table.store.list(prefix, start_after=prefix + begin, stop_at=f"{prefix}:")
    now = Timeline.of(entry.path.removeprefix(prefix) for entry in listed)  # a rollback begins after its victim
    pending = now.pending_files(begin)
    if not pending or now.written_at(begin) is not None or _planned_for(table, now, begin) is not None:
        return False
    table.store.delete_all(files)
    for name in reversed(pending):  # last, and the requested state after the other: until then it counts as pending
        table.store.delete(prefix + name)
    table.tell("rolled_back", begin)
    return True


def _in_good_hands(table: TableContext, now: Timeline, victim: str) -> bool:
    """Whether somebody alive is rolling it back: JVM writers do that without the lock, and fail if we get ahead."""
    planned = _planned_for(table, now, victim)
    return planned is not None and planned not in plans.dead_plans(table, now, Action.ROLLBACK)


def is_planned(table: TableContext, timeline: Timeline, begin: str) -> bool:
    """Whether a rollback that is not completed names this instant."""
    return any(
        read_rollback_plan(table, planned).victim == begin for planned in timeline.pending_rollbacks if planned > begin
    )


def execute(table: TableContext, lease: Lease, now: Timeline, victim: str, *, fenced: bool) -> None:
    """`fenced`: the victim is another's, who may wake up and commit once our lease has lapsed."""
    files = files_of(table, victim)
    planned = _planned_for(table, now, victim)
    plan = (
        read_rollback_plan(table, planned)
        if planned
        else RollbackPlan(victim, _action(now, victim), _requests(table, files))
    )
    begin = planned or _plan_it(table, now, plan, lease if fenced else None)
    listing.unlist(table, victim)  # while it is pending: what the metadata table alone has counts
    plans.remove_files(table, victim, files)
    # Inflight first: from here on its writer, should it wake up, sees that it must not commit.
    for name in reversed(now.pending_files(victim)):
        table.store.delete(f"{TIMELINE}/{name}")
    # A task that still wrote either saw that the instant is gone, and withdrew its file, or the file is there now.
    for path in files_of(table, victim):
        table.store.delete(path)
    table.store.delete(heartbeat_path(victim))
    _complete(table, lease, begin, plan, files)
    table.store.delete(heartbeat_path(begin))


def _action(now: Timeline, victim: str) -> str:
    return (now.pending_action(victim) or Action.COMMIT).value


def _requests(table: TableContext, files: tuple[str, ...]) -> tuple[RollbackRequest, ...]:
    root = table.url.rstrip("/")
    return tuple(
        RollbackRequest(partition, tuple(f"{root}/{join(partition, name)}" for name in names))
        for partition, names in names_by_partition(files).items()
    )


def _plan_it(table: TableContext, now: Timeline, plan: RollbackPlan, lease: Lease | None) -> str:
    begin = plans.claim_time(table, now)
    plans.put_plan(table, begin, Action.ROLLBACK, encode_rollback_plan(plan), lease)
    return begin


def _complete(table: TableContext, lease: Lease, begin: str, plan: RollbackPlan, files: tuple[str, ...]) -> None:
    done = {
        partition: RolledBackPartition(deleted=tuple(join(partition, name) for name in names))
        for partition, names in names_by_partition(files).items()
    }
    metadata = RollbackMetadata(begin, ((plan.victim, plan.action),), done)
    plans.complete(table, lease, begin, Action.ROLLBACK, encode_rollback(metadata))


def _planned_for(table: TableContext, now: Timeline, victim: str) -> str | None:
    """The begin time of a pending rollback of this victim, left by a cleaner that died."""
    return next((begin for begin in now.pending_rollbacks if read_rollback_plan(table, begin).victim == victim), None)


def read_rollback_plan(table: TableContext, begin: str) -> RollbackPlan:
    """The plan of the rollback that began then; of no victim if it was completed meanwhile."""
    name = Instant(begin, Action.ROLLBACK, InstantState.REQUESTED).file_name
    content = table.store.read_or_none(f"{TIMELINE}/{name}")
    if content is None:
        return RollbackPlan("", Action.COMMIT.value)  # completed meanwhile, and archived or removed
    return decode_rollback_plan(content.data, name)


def files_of(table: TableContext, begin: str) -> tuple[str, ...]:
    """Every base and log file that carries this begin time, whether a marker names it or not."""
    return plans.files_by_begin(table).get(begin, ())
