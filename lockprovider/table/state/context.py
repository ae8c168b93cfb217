"""`TableContext`: an open table for services, engines and transactions; `Table` adds the verbs for users."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from fsspec_cas import CasError, Entry, Machine, Store, World, check_url
from lockprovider import AuditLog, InvalidSettings, Lease, Lock, LockRecord
from lockprovider.table.errors import TableError
from lockprovider.table.files.place import TablePlace
from lockprovider.table.format.compatibility import check_readable, check_writable, keeps_file_listing, reasons
from lockprovider.table.format.instant import Instant
from lockprovider.table.format.metadata import CommitMetadata
from lockprovider.table.format.properties import TableConfig
from lockprovider.table.html import facts
from lockprovider.table.settings import TableSettings, checked_table_settings
from lockprovider.table.state.clock import TimelineClock
from lockprovider.table.state.current import CurrentState
from lockprovider.table.state.events import MAY_STOP, STEPS, EventKind, TableEvent, Watcher, ignore_event
from lockprovider.table.state.fence import Fence, batches_newest_first, refuse_repeated_or_fenced
from lockprovider.table.state.knowledge import TableKnowledge, TableView
from lockprovider.table.timeline.timeline import Timeline
from lockprovider.table.timeline.view import Snapshot

_LOG = logging.getLogger("lockprovider.table")
_LOOKS_FOR_DEAD = 2  # per heartbeat interval

_Context = TypeVar("_Context", bound="TableContext")


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
        """Return the state for a pickle or copy, with an empty cache."""
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
        """Read properties and timeline, and return an HTML summary for notebooks; it shows a store or table error."""
        try:
            config, timeline = self.config(), self.timeline()
        except (CasError, TableError) as error:
            return facts(repr(self), [("cannot be read", error)])
        newest = timeline.latest_completed_time
        return facts(
            repr(self),
            [
                ("name", config.name),
                ("type", f"{config.table_type}, version {config.version}"),
                ("record keys", ", ".join(config.record_keys)),
                ("partitioned by", ", ".join(config.partition_fields) or "nothing"),
                ("ordering", ", ".join(config.ordering_fields) or "none"),
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
        """Return the columns, without Hudi's meta columns, of the latest commit that states them, else of the creation.

        Raises:
            TableNotFound: neither states any.
            HistoryGone: a commit was archived or taken back since `timeline` was listed.

        >>> table.schema().names
        ['id', 'city', 'fare']
        """
        return self.current.schema(timeline or self.timeline())

    def timeline(self) -> Timeline:
        """Return the timeline for readers: each commit with all decided before it.

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
        """Return the metadata of a completed write.

        Raises:
            Corrupt: its file cannot be decoded.
            HistoryGone: it was archived or taken back since it was listed.
        """
        return self.current.metadata_of(instant)

    def data_files(self) -> list[Entry]:
        """List all files of the table except Hudi's metadata, in a snapshot or not."""
        return self.current.data_files()

    def snapshot_of(self, timeline: Timeline, files: Iterable[Entry] | None = None) -> Snapshot:
        """Return the snapshot of `timeline`, from `files` or, if None, from the files of now."""
        return self.current.snapshot(timeline, files)

    @property
    def lock(self) -> Lock:
        """This process's client of the table lock."""
        return self._lock

    def under(self: _Context, fence: Any) -> _Context:
        """Return the same table for a writer of one epoch; its writes and services fail once a newer epoch commits.

        A fence is a term, a lease, a job, or its epoch (a whole number from 1 on). A fence with a name, `("compactor",
        term)`, is compared with fences of that name only. It replaces the table's earlier fence.

        Each commit records its epoch. The write that decides a commit compares it with all earlier commits, also
        archived ones; services compare under the lock. Spark, Dask and streams take the result like any table.

        NOT promised: that an older epoch is refused before a newer one has committed. Nor that commits without a fence,
        such as JVM commits, are refused. Nor anything about epochs whose commits a restore took back.

        Raises:
            InvalidInput: `fence` has no epoch. No request is made.
            Fenced: by writes and services of the result: a newer epoch has committed.

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
                refuse_repeated_or_fenced(
                    (self.fence,), None, partial(batches_newest_first, self, self.listed_timeline())
                )
            yield lease

    def now(self, record: LockRecord | None = None, *, listed: bool = False) -> TableView:
        """Read the table by the lock's log, or list it if needed or `listed`."""
        return self.current.now(record, listed=listed)

    def begin_dead_check_if_due(self) -> bool:
        """Return whether a check for dead writers is due; if so, record it as done."""
        now_s, last_s = self.world.monotonic_s(), self.knowledge.dead_checked_s
        if last_s is not None and now_s - last_s < self.settings.heartbeat.interval_s / _LOOKS_FOR_DEAD:
            return False
        self.knowledge.dead_checked_s = now_s
        return True

    def run_inline_services(self) -> None:
        """Run the services due after a commit: none here; `Table` overrides it."""

    def report(self, kind: EventKind, begin: str, **detail: object) -> None:
        """Log an event of the instant `begin`, then call the watcher with it in this thread.

        The watcher's error is raised at the events of `MAY_STOP`, else logged: the commit or service is done.
        """
        level = logging.DEBUG if kind in STEPS else logging.WARNING if kind == "service_failed" else logging.INFO
        if _LOG.isEnabledFor(level):
            details = ", ".join(f"{name} {value}" for name, value in detail.items())
            _LOG.log(level, "%s: %s %s%s", self.url, kind, begin, f" ({details})" if details else "")
        try:
            self._watcher(TableEvent(kind, self.world.now_ms(), begin, detail))
        except Exception:
            if kind in MAY_STOP:
                raise
            _LOG.exception("%s: the watcher failed at %s %s, which is done", self.url, kind, begin)


def writable_config(table: TableContext, config: TableConfig | None = None) -> TableConfig:
    """Return `config`, or the current properties; raises `UnsupportedTable` if the table cannot be written here."""
    config = table.config() if config is None else config
    check_writable(config, keeps_listing=keeps_listing(table, config))
    return config


def config_to_begin_with(table: TableContext) -> TableConfig:
    """Return the properties last seen if they allow a write here, else read them; may raise `UnsupportedTable`.

    If those last seen refuse, it lists the table. The write compares the properties before its first file.
    """
    config = table.knowledge.config
    if config is not None and not _is_writable(table, config):
        config = table.now(listed=True).config  # the start compares them with the cached view, which this refreshes
    return writable_config(table, config)


def view_to_begin_with(table: TableContext) -> TableView:
    """Return the table now, listed if the properties last seen refuse a write."""
    view = table.now()
    return view if view.listed or _is_writable(table, view.config) else table.now(listed=True)


def _is_writable(table: TableContext, config: TableConfig) -> bool:
    return not reasons(config, keeps_listing=keeps_listing(table, config))


def keeps_listing(table: TableContext, config: TableConfig) -> bool:
    """Return whether writes here maintain a metadata table's listing of files."""
    setting = table.settings.write_metadata
    return keeps_file_listing(config) if setting is None else setting
