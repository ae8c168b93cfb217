"""Which batch of which stream a commit was, as it says itself, in the key and the form of Hudi's own streaming sink.

Source: Hudi `HoodieStreamingSink`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from lockprovider.bounded import LARGEST_OBJECT, parse_json

SINK_KEY = "_hudi_streaming_sink_checkpoint"


def batches_by_stream(extra: Mapping[str, str]) -> dict[str, int]:
    """The batches by stream of a commit with this extra metadata; what was not written by a sink is none."""
    try:
        said = parse_json(extra.get(SINK_KEY, "{}").encode(), most=LARGEST_OBJECT).items()
    except (ValueError, TypeError, AttributeError):
        return {}
    return {str(stream): int(batch) for stream, batch in said if _is_number(batch)}


def noted(extra: Mapping[str, str], stream: str, batch: int) -> dict[str, str]:
    """What a commit of this batch says; with what its extra metadata says of other streams already."""
    said = {name: str(number) for name, number in batches_by_stream(extra).items()}
    return {SINK_KEY: json.dumps({**said, stream: str(batch)})}


def _is_number(batch: object) -> bool:
    try:
        return int(str(batch)) >= 0
    except ValueError:
        return False
