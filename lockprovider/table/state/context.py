"""`TableContext`; `Table` adds the verbs for users."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import types

from fsspec_cas import CasError, Entry, Machine, Store, World, check_url
from lockprovider import AuditLog, InvalidSettings, Lease, Lock, LockRecord
from lockprovider.table.errors import HistoryGone, TableError, UnsupportedTable
from lockprovider.table.files import base_file
from lockprovider.table.files.place import TablePlace
from lockprovider.table.format import schema as hudi_schema
from lockprovider.table.format.compatibility import check_readable, check_writable, keeps_file_listing, reasons
from lockprovider.table.format.layout import PROPERTIES, Instant
from lockprovider.table.format.metadata import CommitMetadata
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.settings import TableSettings, checked_table_settings
from lockprovider.table.state.current import CurrentState
from lockprovider.table.state.events import MAY_STOP, STEPS, EventKind, TableEvent, Watcher, ignore_event
from lockprovider.table.state.knowledge import KeySpellings, TableKnowledge, TableView
from lockprovider.table.timeline.conflict import Fence, refuse_repeated_or_fenced
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import FileSlice, Snapshot, html_facts

_LOG = logging.getLogger("lockprovider.table")
_LOOKS_FOR_DEAD = 2  # per heartbeat interval
_COMPARED = 4  # files whose keys are compared
_ROWS, _BYTES = 1024, 1 << 20  # searched for a row without null times
_DIFFERS_MS = 1500  # the lock's grace and a second: HTTP clocks have seconds
_BELIEVED_S = 60.0
_warned_stores: set[object] = set()

_Context = TypeVar("_Context", bound="TableContext")
_Result = TypeVar("_Result")


class TimelineClock:
    """Clock for one table's instants: this machine's, or the store's if that is behind. Thread-safe."""

    def __init__(self, store: Store, url: str, world: World) -> None:
        self._store = store
        self._url = url
        self._world = world
        self._asked_s = -_BELIEVED_S

    def now_ms(self) -> int:
        """This machine's epoch ms, or the store's if that is over `_DIFFERS_MS` behind.

        While they differ, logs that once, and asks the store each minute.
        """
        if self.ahead_ms and self._world.monotonic_s() - self._asked_s >= _BELIEVED_S:
            self._ask()  # the machine may have slept since
        return self._world.now_ms() - max(0, self._warned(self.ahead_ms))

    def store_ms(self) -> int:
        """Ask the store for its clock; return the earlier of it and this machine's."""
        self._ask()
        by_store, own_ms = self._store.time_ms, self._world.now_ms()
        return own_ms if by_store is None else min(own_ms, by_store)

    def asked_ahead_ms(self) -> int:
        """Ask the store for its clock, log a difference, and return `ahead_ms`."""
        self._ask()
        return self._warned(self.ahead_ms)

    def _warned(self, ahead_ms: int) -> int:
        if ahead_ms and self._store.identity not in _warned_stores:
            _warned_stores.add(self._store.identity)
            _LOG.warning("%s: %s: set the clock", self._url, clock_difference(ahead_ms))
        return ahead_ms

    @property
    def ahead_ms(self) -> int:
        """How many ms this machine's clock is ahead of the store's (negative: behind); 0 within `_DIFFERS_MS`."""
        by_store = self._store.time_ms
        difference_ms = 0 if by_store is None else self._world.now_ms() - by_store
        return difference_ms if abs(difference_ms) > _DIFFERS_MS else 0

    def _ask(self) -> None:
        try:
            self._store.head(PROPERTIES)
        except (CasError, FileNotFoundError):
            return  # later requests report the failure
        self._asked_s = self._world.monotonic_s()


def clock_difference(ahead_ms: int) -> str:
    side = "ahead of" if ahead_ms > 0 else "behind"
    return f"this machine's clock is {abs(ahead_ms) / 1000:.1f} s {side} the store's"


class TableContext:
    """An open table: store, lock, settings, clock and cache. Thread-safe.

    NOT promised: that an answer is still true, or that two answers are of one moment.
    """

    def __init__(
        self,
        store: Store,
        url: str = "",
        *,
        storage_options: dict[str, Any] | None = None,
        settings: TableSettings | None = None,
        watcher: Watcher = ignore_event,
        world: World | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        if not isinstance(store, Store) or not url:
            raise InvalidSettings(f"Table({store!r}, ...) is made of a store and its URL: use Table.open(url)")
        if not callable(watcher):
            raise InvalidSettings(f"watcher={watcher!r} must be a function of a TableEvent")
        if store.kind == "local" and "://" not in url and not url.startswith("/"):
            url = store.root  # another process may have another working folder
        self.place = TablePlace.of(store, url, storage_options)
        self.store = store
        self.url = url
        self.storage_options = storage_options
        self._audit = audit
        self.settings = checked_table_settings(settings)
        self.world = world or Machine()
        self._watcher = watcher
        self._lock = Lock(store, settings=self.settings.lock, world=self.world, audit=audit)
        self.clock = TimelineClock(store, url, self.world)
        self.knowledge = TableKnowledge(self.place)
        self.current = CurrentState(self._lock, self.knowledge, by_metadata=self.settings.read_from_metadata)
        self.fence: Fence | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {
            "store": self.store,
            "url": self.url,
            "storage_options": self.storage_options,
            "settings": self.settings,
            "watcher": self._watcher,
            "world": self.world,
            "audit": self._audit,
            "fence": self.fence,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        fence = state.pop("fence", None)
        TableContext.__init__(self, **state)
        self.fence = fence

    @classmethod
    def open(
        cls: type[_Context],
        url: str | os.PathLike[str],
        *,
        storage_options: dict[str, Any] | None = None,
        settings: TableSettings | None = None,
        watcher: Watcher = ignore_event,
    ) -> _Context:
        """Open the table at `url`; reads its properties.

        Raises:
            TableNotFound: `url` has no table.
            UnsupportedTable: its rows would be read wrong here.
            InvalidSettings: `settings` name another index than the table has.

        >>> Table.open("memory://docs/trips").count()
        2
        """
        url = check_url(url)
        store = Store.from_url(url, storage_options)
        audit = AuditLog(store)
        table = cls(store, url, storage_options=storage_options, settings=settings, watcher=watcher, audit=audit)
        config = table.config()
        check_readable(config)
        if settings is not None:
            settings.check(config)
        return table

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.url!r}>"

    def _repr_html_(self) -> str:
        """Read properties and timeline; return an HTML table of them, or of the read's error."""
        try:
            config, timeline = self.config(), self.timeline()
        except (CasError, TableError) as error:
            return html_facts(repr(self), [("cannot be read", error)])
        newest = timeline.latest_completed_time
        return html_facts(
            repr(self),
            [
                ("name", config.name),
                ("type", f"{config.table_type}, version {config.version}"),
                ("record keys", ", ".join(config.record_keys)),
                ("partitioned by", ", ".join(config.partition_fields) or "nothing"),
                ("ordering", ", ".join(config.deciding_fields) or "none"),
                ("completed writes on the timeline", len(timeline.writes)),
                ("newest", newest or "none"),
            ],
        )

    def config(self) -> TableConfig:
        """Read the table's properties.

        Raises:
            TableNotFound: no properties file exists.

        >>> table.config().record_keys
        ('id',)
        """
        return self.current.config()

    def schema(self, timeline: Timeline | None = None) -> pa.Schema:
        """Columns, without Hudi's meta columns, of the latest commit that states them, else of the creation.

        Raises:
            TableNotFound: neither states any.
            HistoryGone: a commit was archived or taken back since `timeline` was listed.

        >>> table.schema().names
        ['id', 'city', 'fare']
        """
        return self.current.schema(timeline or self.timeline())

    def timeline(self) -> Timeline:
        """Timeline for readers: each commit with all decided before it.

        >>> table.timeline().latest_completed_time == first.completion
        True
        """
        return self.current.visible()

    def listed_timeline(self) -> Timeline:
        """List the whole timeline, for writers and services, which must not overlook an instant.

        >>> table.listed_timeline().latest_completed_time == first.completion
        True
        """
        return self.current.listed()

    def metadata_of(self, instant: Instant) -> CommitMetadata:
        """Completed write's metadata.

        Raises:
            Corrupt: its file cannot be decoded.
            HistoryGone: it was archived or taken back since it was listed.
        """
        return self.current.metadata_of(instant)

    def data_files(self) -> list[Entry]:
        """List all files except Hudi's metadata."""
        return self.current.data_files()

    def snapshot_of(self, timeline: Timeline, files: Iterable[Entry] | None = None) -> Snapshot:
        """Snapshot of `timeline`, from `files` or, if None, from those of now."""
        return self.current.snapshot(timeline, files)

    @property
    def lock(self) -> Lock:
        """This process's client of the lock."""
        return self._lock

    def under(self: _Context, fence: Any) -> _Context:
        """Same table for a writer of one epoch; its writes and most services fail once a newer epoch commits.

        A fence is a term, lease, job, or its epoch (a whole number from 1). It replaces the table's earlier fence.
        README.md, "Fences", has named fences, and what is NOT promised.

        Raises:
            InvalidInput: `fence` has no epoch.

        >>> table.under(("loader", 4)).append(pa.table({"id": [3], "city": ["ulm"]})).inserted
        1
        >>> table.under(("loader", 3)).append(pa.table({"id": [4], "city": ["ulm"]}))
        Traceback (most recent call last):
        ...
        lockprovider.recipes.errors.Fenced: epoch 3 of 'loader' is over, because epoch 4 has written ...
        """
        table = object.__new__(type(self))
        table.__dict__.update(self.__dict__)  # cache and lock are shared
        table.fence = Fence.of(fence)
        return table

    @contextlib.contextmanager
    def locked(self) -> Iterator[Lease]:
        """Hold the table's lock; publishes under it follow no commit of a newer epoch.

        Raises:
            Fenced: a newer epoch has committed.
            NotAcquired, CasError: the lock or the store failed.
        """
        with self._lock.acquire() as lease:
            if self.fence is not None:
                batches = partial(self.current.batches_newest_first, self.listed_timeline())
                refuse_repeated_or_fenced((self.fence,), None, batches)
            yield lease

    def now(self, record: LockRecord | None = None, *, listed: bool = False) -> TableView:
        """As `CurrentState.now`."""
        return self.current.now(record, listed=listed)

    def begin_dead_check_if_due(self) -> bool:
        """Whether a check for dead writers is due; if so, records it as done."""
        now_s, last_s = self.world.monotonic_s(), self.knowledge.dead_checked_s
        if last_s is not None and now_s - last_s < self.settings.heartbeat.interval_s / _LOOKS_FOR_DEAD:
            return False
        self.knowledge.dead_checked_s = now_s
        return True

    def run_inline_services(self) -> None:
        """Do nothing; `Table` overrides it."""

    def report(self, kind: EventKind, begin: str, **detail: object) -> None:
        """Log an event of the instant `begin`, then call the watcher with it in this thread.

        The watcher's error is raised at the events of `MAY_STOP`, else logged.
        """
        level = logging.DEBUG if kind in STEPS else logging.WARNING if kind == "service_failed" else logging.INFO
        if _LOG.isEnabledFor(level):
            details = ", ".join(f"{name} {value}" for name, value in detail.items())
            _LOG.log(level, "%s: %s %s%s", self.url, kind, begin, f" ({details})" if details else "")
        if self._watcher is ignore_event:
            return
        try:
            self._watcher(TableEvent(kind, self.world.now_ms(), begin, detail))
        except Exception:
            if kind in MAY_STOP:
                raise
            _LOG.exception("%s: the watcher failed at %s %s, which is done", self.url, kind, begin)

    def report_each(self, begin: str, step: str, results: Iterable[_Result], total: int) -> Iterator[_Result]:
        """Yield the results of a single-step read or write, and report progress after each."""
        for done, result in enumerate(results, start=1):
            self.report("progress", begin, step=step, number=1, of=1, done=done, total=total)
            yield result


def writable_config(table: TableContext, config: TableConfig | None = None) -> TableConfig:
    """`config`, or the current properties; raises `UnsupportedTable` if they refuse writes."""
    config = table.config() if config is None else config
    check_writable(config, keeps_listing=keeps_listing(table, config))
    return config


def read_to_begin(table: TableContext, *, pinned: bool) -> tuple[TableConfig, Timeline | None]:
    """Properties to begin a write with, cached as `writable`; if `pinned`, also the timeline read now.

    If not `pinned`, cached properties serve, if any. If properties refuse a write, it lists the table, unless just
    listed; raises `UnsupportedTable` if they still do.
    """
    view = table.now() if pinned else None
    config = table.knowledge.config if view is None else view.config
    if config is None or config is not table.knowledge.writable:
        is_refused = config is not None and bool(reasons(config, keeps_listing=keeps_listing(table, config)))
        if is_refused and (view is None or not view.listed):
            view = table.now(listed=True)  # the start compares them with the cached view, which this refreshes
            config = view.config
        config = table.knowledge.writable = writable_config(table, config)
    return config, view.timeline if pinned and view is not None else None


def keeps_listing(table: TableContext, config: TableConfig) -> bool:
    """Whether writes here maintain a metadata table's listing of files."""
    setting = table.settings.write_metadata
    return keeps_file_listing(config) if setting is None else setting


def with_key_spelling(table: TableContext, config: TableConfig) -> TableConfig:
    """`config` with `key_is_named`: whether a single column's keys name it in the files.

    With one complex key column (JVM.md) or a timestamp key, compares one row each of up to `_COMPARED` files, and
    caches the result. Without the former or a row, `config` is unchanged. Raises `UnsupportedSchema` for a timestamp
    partition column, `UnsupportedTable` for an unknown or mixed spelling.
    """
    stated = config.schema_json
    kinds = hudi_schema.from_avro(stated) if stated else table.knowledge.schema or table.schema()
    hudi_schema.refuse_timestamp_partitions(config.name, kinds, config.partition_fields)
    keys = hudi_schema.present(config.record_keys, kinds.names)
    if not config.has_complex_single_key and not any(types.is_timestamp(kinds.field(name).type) for name in keys):
        return config
    spellings = table.knowledge.key_spellings
    samples, compared = dict(spellings.samples), spellings.compared
    for slice_ in _to_compare(table, spellings):
        with contextlib.suppress(HistoryGone):  # a clean removed the file
            samples.update(_spelling(table, config, slice_))
        compared = max(compared, slice_.begin)
    table.knowledge.key_spellings = KeySpellings(compared, samples)
    if len(samples) > 1:
        raise UnsupportedTable(
            f"table {config.name!r} spells the keys of {list(config.record_keys)} in two ways, such as "
            f"{samples[True]!r} and {samples[False]!r}: an upsert would not find rows of the other spelling; rewrite "
            "the table with one writer"
        )
    return replace(config, key_is_named=next(iter(samples))) if samples else config


def _to_compare(table: TableContext, spellings: KeySpellings) -> list[FileSlice]:
    """Read the table: at first up to `_COMPARED` slices, spread over all; later the newest, unless compared."""
    snapshot = table.current.current_files(table.now().timeline)
    files = sorted((slice_ for slice_ in snapshot.slices if slice_.path), key=lambda slice_: slice_.begin)
    if spellings.compared:
        return [slice_ for slice_ in files[-1:] if slice_.begin > spellings.compared]
    places = {at * (len(files) - 1) // (_COMPARED - 1) for at in range(_COMPARED)} if files else set()
    return [files[at] for at in sorted(places)]


def _spelling(table: TableContext, config: TableConfig, slice_: FileSlice) -> Mapping[bool, str]:
    """Read some rows of the slice; return one's key by spelling (True: it names its column).

    Empty without a row, or if the properties fix the spelling. Raises `UnsupportedTable` for another spelling.
    """
    file = table.place.open(slice_.path, slice_.size)
    rows = next(iter(base_file.in_batches(file, [hudi_schema.RECORD_KEY, *config.record_keys], _ROWS, _BYTES)), None)
    if rows is None or not rows.num_rows:
        return {}
    times = [column for column in rows.columns if types.is_timestamp(column.type)]
    complete = [all(value.is_valid for value in values) for values in zip(*times, strict=True)]
    row = rows.slice(complete.index(True) if True in complete else 0, 1)
    key = row.column(hudi_schema.RECORD_KEY)[0].as_py()
    ways = (False, True) if config.has_complex_single_key else (config.names_single_key,)
    texts = {named: base_file.record_keys(row, config.record_keys, named=named)[0].as_py() for named in ways}
    matching = {named: text for named, text in texts.items() if text == key}
    if not matching:
        raise UnsupportedTable(
            f"table {config.name!r} has the key {key!r} in {slice_.path}, where {list(config.record_keys)} makes "
            f"{' or '.join(map(repr, texts.values()))}: an upsert would add the row again; write the table with the "
            "engine that made it, or make a new table of its rows"
        )
    return matching if config.has_complex_single_key else {}
