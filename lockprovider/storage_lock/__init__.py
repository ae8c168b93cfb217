"""Hudi's storage lock (RFC-91), publishes fenced by it, and group commit.

- `record`: content of the lock object, and the log in it
- `machine`, `driver`: lease protocol
- `acquire`, `polling`: waiting for the lock
- `publisher`: fenced publish
- `committer`, `commit_rules`, `commit_requests`, `record_writer`: group commit
- `client`: one client of a lock, of all these
- `lock`, `async_lock`, `lease`, `provider`: what users hold
- `heartbeat`: renewal of a lease
- `metrics`, `otel`, `audit`, `audit_log`, `status`: observers
"""
