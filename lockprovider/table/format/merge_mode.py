"""How two versions of a row merge, as the table's properties say it.

Source: Hudi `RecordMergeMode`, `HoodieTableConfig.inferMergingConfigs`.
"""

from __future__ import annotations

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
