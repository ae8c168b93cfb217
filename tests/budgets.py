"""How many requests each operation asks of its store, in one table: the tests that count take their numbers from here.

A list is in the order in which a store is asked. Who changes a number here changes what a user pays for.
"""

from __future__ import annotations

# A store. "refused" is a write whose condition does not hold: one request more tells whether it was the caller's own.
VERBS = {
    "create": 1,
    "create refused": 2,
    "replace": 1,
    "replace refused": 2,
    "delete at a version refused": 2,
    "read": 1,
    "read what is not there": 1,
    "read if changed": 1,
    "head": 1,
    "list a page": 1,
    "delete": 1,
}
PROOF = {"put": 3 + 2 * (8 + 16), "head": 4}  # once for each bucket: two races, of 8 that create and 16 that replace

# The lock: to take, to renew and to release it; `large` is data that is staged and not enclosed in the record.
LOCK_COLD = ["get", "put", "put"]
LOCK_WARM = ["put", "put"]
LOCK_RENEW = ["put"]
PUBLISH = ["get", "put", "put"]  # is the path free, the commit, its object
PUBLISH_NEW = ["put", "put"]
PUBLISH_LARGE = ["put", "get", "put", "put", "delete"]  # staged before, and the copy removed after
PUBLISH_LARGE_NEW = ["put", "put", "put", "delete"]
PUBLISH_STAGED = ["get", "get", "put", "put", "delete"]  # large; the copy is compared
PUBLISH_STAGED_WITH_DATA = ["get", "put", "put", "delete"]
PUBLISH_STAGED_NEW = ["put", "put"]  # the copy is removed after the release

# Recipes.
STATE_UPDATE = ["put", "put"]
STATE_READ = ["get"]
QUEUE_PUT = ["put"]
QUEUE_JOB = ["put", "put"]  # claimed, and acked
QUEUE_IDLE = ["get"]
QUEUE_PUT_WITH_SEGMENT = ["put", "put"]
QUEUE_CLAIM_WITH_SEGMENT = ["get", "put", "delete"]
LOG_APPEND = ["put"]
LOG_IDLE = ["get"]
LOG_END = 12  # at most, wherever it is
ELECTION_WIN = ["get", "put"]
ELECTION_RENEW = ["put"]
ELECTION_RESIGN = ["put"]
ELECTION_LOOK = ["get"]

# A table whose process has written to it before.
BEGIN = ["put heartbeat", "put requested", "get lock", "put inflight"]
COMMIT = [
    "get properties",
    "put lock",  # the commit point
    "put completed",
    "put lock",
    "delete heartbeat, marker",
]
APPEND = [*BEGIN, "put marker", "put data", *COMMIT]  # into one known partition
UPSERT_READS = 4  # more than an append, at most: what is there
NON_BLOCKING = 11  # and one for each bucket
OPEN = ["get properties", "get lock", "get properties", "get files", "list_page timeline"]  # whatever its age
UPSERT_COLD = 30  # at most, by a process that knows nothing, into a thousand files
ARCHIVE_LISTS = 12  # at most
ARCHIVE_NOTHING = ["get files", "get properties", "list_page timeline"]
