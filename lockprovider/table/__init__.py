"""Apache Hudi tables that many writers share.

    from lockprovider.table import Table, TableSpec
    table = Table.create("s3://bucket/trips", TableSpec("trips", schema, record_keys=("id",)))

Start with `Table`. Engines are in `lockprovider.table.engines`. Without the packages of the extra `table` the import
raises `ModuleNotFoundError`.
"""

from lockprovider.table import extras as extras
from lockprovider.table.doctor.facts import TableFinding
from lockprovider.table.engines.scan import Scan
from lockprovider.table.errors import (
    Aborted,
    Corrupt,
    DoesNotFit,
    HistoryGone,
    InvalidRecords,
    TableError,
    TableExists,
    TableNotFound,
    TableReplaced,
    UnsupportedSchema,
    UnsupportedTable,
    WriteConflict,
)
from lockprovider.table.read.consistent import Changes, Commit, CommitHistory
from lockprovider.table.settings import FailedWrites, HeartbeatSettings, Mode, TableSettings
from lockprovider.table.spec import TableSpec
from lockprovider.table.state.events import ShowProgress, TableEvent, Watcher
from lockprovider.table.table import Table
from lockprovider.table.table_transaction import TableTransaction
from lockprovider.table.timeline.retention import KeepActive, KeepCommits, KeepHours, KeepVersions
from lockprovider.table.timeline.rewrite_plan import ClusterEvery, CompactEvery
from lockprovider.table.timeline.versions import AsOf, Order
from lockprovider.table.timeline.view import FileSlice, Snapshot
from lockprovider.table.transaction.transaction import CommitResult

__all__ = [
    "Aborted",
    "AsOf",
    "Changes",
    "ClusterEvery",
    "Commit",
    "CommitHistory",
    "CommitResult",
    "CompactEvery",
    "Corrupt",
    "DoesNotFit",
    "FailedWrites",
    "FileSlice",
    "HeartbeatSettings",
    "HistoryGone",
    "InvalidRecords",
    "KeepActive",
    "KeepCommits",
    "KeepHours",
    "KeepVersions",
    "Mode",
    "Order",
    "Scan",
    "ShowProgress",
    "Snapshot",
    "Table",
    "TableError",
    "TableEvent",
    "TableExists",
    "TableFinding",
    "TableNotFound",
    "TableReplaced",
    "TableSettings",
    "TableSpec",
    "TableTransaction",
    "UnsupportedSchema",
    "UnsupportedTable",
    "Watcher",
    "WriteConflict",
]
