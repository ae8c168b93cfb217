"""What a Spark job says of its read in Hudi's own options, as options of the data source.

    hoodie.datasource.query.type                        snapshot, read_optimized, incremental
    hoodie.datasource.read.begin.instanttime            with incremental: what was committed after it (000: everything)
    hoodie.datasource.read.end.instanttime              ... and until it
    hoodie.datasource.query.incremental.format          latest_state
    as.of.instant                                       the table as of a version
    hoodie.datasource.streaming.startoffset             of a stream: earliest, latest or a version

Their times are versions as elsewhere (`timeline.versions`), and in Hudi's forms, `2026-01-02 12:30:00` and
`2026-01-02`, which are UTC here. Every other `hoodie.*` option of a read is refused, but for those that tell how a
reader works inside, and those of a writer's lock, services and indexes, which `TableSettings.from_hudi` knows.

Source: Hudi `DataSourceReadOptions`, `HoodieSqlCommonUtils.formatQueryInstant`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

from fsspec_cas import InvalidInput
from lockprovider import hudi_keys

_READ = "hoodie.datasource.read."
_TYPE = "hoodie.datasource.query.type"
_BEGIN, _END = f"{_READ}begin.instanttime", f"{_READ}end.instanttime"
_FORMAT = "hoodie.datasource.query.incremental.format"
_AS_OF = "as.of.instant"
_OFFSET = "hoodie.datasource.streaming.startoffset"
OBEYED = frozenset({_TYPE, _BEGIN, _END, _FORMAT, _AS_OF, _OFFSET})
_TYPES = ("snapshot", "read_optimized", "incremental")

# The rows are the same, whatever these say; of some that is so for one value alone.
_INSIDE = ("hoodie.metadata.", "hoodie.memory.", "hoodie.parquet.", "hoodie.common.spillable.", "hoodie.filesystem.")
_WITHOUT_EFFECT: Mapping[str, tuple[str, ...]] = {
    "hoodie.enable.data.skipping": (),
    "hoodie.file.index.enable": (),
    "hoodie.datasource.read.file.index.listing.mode": (),
    "hoodie.datasource.read.file.index.listing.partition-path-prefix.analysis.enabled": (),
    "hoodie.datasource.read.file.index.optimize.listing.using.ro.path.filter": (),
    "hoodie.datasource.read.incr.skip_compact": (),  # no row changes by either
    "hoodie.datasource.read.incr.skip_cluster": (),
    "hoodie.datasource.read.incr.skip_insert_overwrite": ("false",),
    "hoodie.datasource.read.incr.fallback.fulltablescan.enable": ("false",),
    "hoodie.datasource.read.extract.partition.values.from.path": ("false",),
    "hoodie.datasource.read.use.new.parquet.file.format": (),
    "hoodie.datasource.read.streaming.table.version": ("8", "9"),
    "hoodie.datasource.read.handle.hollow.commit": ("use_transition_time",),
    "hoodie.read.timeline.holes.resolution.policy": ("use_transition_time",),
    "hoodie.datasource.merge.type": ("payload_combine",),
    "hoodie.schema.on.read.enable": ("false",),
}
_INSTEAD = {
    "hoodie.datasource.read.incr.filters": "use the option filter",
    "hoodie.datasource.read.incr.path.glob": "use the option partitions",
    "hoodie.datasource.read.paths": "give the table's URL as path",
    "hoodie.datasource.read.incr.fallback.fulltablescan.enable": "read the whole table after HistoryGone",
}
_CDC = "its rows would have other columns: use the option changes=true, which says in _operation what became of a row"


def ours(known: Mapping[str, str]) -> dict[str, str]:
    """The options of the data source that Hudi's stand for, of options whose names are in lower case.

    Raises:
        InvalidInput: one has a value that it cannot have, or contradicts another.
    """
    found: dict[str, str] = {}
    kind = known.get(_TYPE, "snapshot").strip().lower()
    if kind not in _TYPES:
        raise InvalidInput(f"{_TYPE}={known[_TYPE]} is none of {', '.join(_TYPES)}")
    if kind == "read_optimized":
        found["read_optimized"] = "true"
    window = [key for key in (_BEGIN, _END, _FORMAT) if key in known]
    if kind == "incremental" and _AS_OF in known:
        raise InvalidInput(f"{_AS_OF} tells what was there, {_TYPE}=incremental what changed: give one or the other")
    if kind != "incremental" and window:
        raise InvalidInput(f"{window} mean nothing for {_TYPE}={kind}; add {_TYPE}=incremental, or leave them out")
    if known.get(_FORMAT, "latest_state").strip().lower() != "latest_state":
        raise InvalidInput(f"{_FORMAT}={known[_FORMAT]} cannot be had here: {_CDC}")
    for key, name in ((_BEGIN, "begin"), (_END, "end"), (_AS_OF, "as_of"), (_OFFSET, "starting")):
        if key in known:
            found[name] = _time(known[key])
    twice = [name for name, value in found.items() if known.get(name, value) != value]
    if twice:
        raise InvalidInput(f"options {twice} are given twice, by Hudi's name and by ours: give one of them")
    return found


def is_incremental(known: Mapping[str, str]) -> bool:
    """Whether they ask for an incremental query."""
    return known.get(_TYPE, "").strip().lower() == "incremental"


def check_read(hudi: Mapping[str, str], *, of_stream: bool) -> None:
    """Refuse options of Hudi's that a read would not obey.

    Raises:
        InvalidInput: naming the option, and the nearest that is known.
    """
    if is_incremental(hudi) and _BEGIN not in hudi and not of_stream:
        raise InvalidInput(f"{_TYPE}=incremental needs {_BEGIN}: a version after which to read, or 000")
    if of_stream and hudi.get(_TYPE, "incremental").strip().lower() != "incremental":
        raise InvalidInput(f"{_TYPE}={hudi[_TYPE]} is no stream, which is incremental; leave it out")
    misplaced = [key for key in ((_BEGIN, _END) if of_stream else (_OFFSET,)) if key in hudi]
    if misplaced:
        instead = f"use {_OFFSET}, or the option starting" if of_stream else f"use {_BEGIN}"
        raise InvalidInput(f"{misplaced} mean nothing for a {'stream' if of_stream else 'batch read'}; {instead}")
    for key, value in hudi.items():
        if key not in OBEYED:
            _check(key, value.strip().lower())


def _check(key: str, value: str) -> None:
    if key in _WITHOUT_EFFECT:
        if (fine := _WITHOUT_EFFECT[key]) and value not in fine:
            instead = _INSTEAD.get(key, f"use {' or '.join(fine)}, or leave it out")
            raise InvalidInput(f"{key}={value} cannot be had here: {instead}")
    elif key in _INSTEAD:
        raise InvalidInput(f"{key} is not obeyed here: {_INSTEAD[key]}")
    elif not (key in hudi_keys.HONOURED or key.startswith((*hudi_keys.OWNED, *_INSIDE))):
        alike = get_close_matches(key, sorted(OBEYED | set(_WITHOUT_EFFECT)), n=1)
        hint = f"did you mean {alike[0]}?" if alike else "leave it out"
        raise InvalidInput(f"{key} is no option of a read that is known here; {hint}")


def _time(text: str) -> str:
    """A time in one of Hudi's forms as one that is a version; other texts as they are."""
    given = text.strip()
    if given and not given.strip("0"):
        return ""  # before all commits
    if found := re.fullmatch(r"(\d{4})0{10}(?:000)?", given):
        return f"{int(found[1]) - 1:04}1231235959999"  # before all commits of that year
    if found := re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(\.\d{1,3})?)?", given):
        day, clock = "-".join(found.groups()[:3]), ":".join(part or "00" for part in found.groups()[3:6])
        return f"{day}T{clock}{(found[7] or '.0').ljust(4, '0')}Z"
    return given
