"""Export of lock metrics through OpenTelemetry: `on_metric=otel.on_metric()`; requires the extra `otel`.

Timers become histograms, in milliseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lockprovider.errors import LockError
from lockprovider.storage_lock.metrics import Measure, OnMetric

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    Record = Callable[[float, Mapping[str, str]], None]


def on_metric(meter: Meter | None = None, attributes: Mapping[str, str] | None = None) -> OnMetric:
    """Return a callback for `on_metric` that records with `meter` (default: the global provider's).

    `attributes` are added to every number.

    Raises:
        LockError: OpenTelemetry's API is not installed.
    """
    chosen = _global_meter() if meter is None else meter
    labels = dict(attributes or {})
    instruments: dict[str, Record] = {}
    making = threading.Lock()

    def record(measure: Measure) -> None:
        with making:
            if measure.name not in instruments:
                instruments[measure.name] = _instrument(chosen, measure)
        instruments[measure.name](measure.value, labels)

    return record


def _global_meter() -> Meter:
    try:
        from opentelemetry import metrics  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise LockError("OpenTelemetry is not installed: install the extra 'otel' of fsspec-cas") from error
    return metrics.get_meter("lockprovider")


def _instrument(meter: Meter, measure: Measure) -> Record:
    """Create the measure's counter, histogram or gauge in `meter`; return its recording function."""
    match measure.kind:
        case "counter":
            return meter.create_counter(measure.name).add
        case "timer":
            return meter.create_histogram(measure.name, unit="ms").record
        case "gauge":
            return meter.create_gauge(measure.name, unit="ms").set
