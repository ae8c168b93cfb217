"""How two versions of a row merge, as the table's properties say it.

Source: Hudi `RecordMergeMode`, `HoodieTableConfig.inferMergingConfigs`.
"""

from __future__ import annotations

from collections.abc import Mapping

EVENT_TIME = "EVENT_TIME_ORDERING"
COMMIT_TIME = "COMMIT_TIME_ORDERING"
STRATEGY = "hoodie.record.merge.strategy.id"
PAYLOAD = "hoodie.compaction.payload.class"

# Version 8 says how rows merge three times over; the JVM wants the three to agree.
V8_MERGE = {
    EVENT_TIME: {
        STRATEGY: "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5",
        PAYLOAD: "org.apache.hudi.common.model.DefaultHoodieRecordPayload",
    },
    COMMIT_TIME: {
        STRATEGY: "ce9acb64-bde0-424c-9b91-f6ebba25356d",
        PAYLOAD: "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload",
    },
}

_OWN_RULE = "hoodie.table.partial.update.mode"  # which columns of a row count as not given
# Markers of deletes, or of values that are not known; the second in version 8.
_OWN_RULES = "hoodie.record.merge.property.", "hoodie.payload."


def own_rule(raw: Mapping[str, str]) -> str:
    """The property, with its value, by which rows of this table merge in a way of their own; empty if there is none.

    Version 9 has them in the place of payload classes.
    """
    found = (key for key in sorted(raw) if key == _OWN_RULE or key.startswith(_OWN_RULES))
    return next((f"{key}={raw[key]}" for key in found if raw[key].strip().upper() not in {"", "NONE"}), "")
