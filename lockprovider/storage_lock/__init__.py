"""Hudi's storage lock (RFC-91), publishes fenced by it, and group commit.

- `record`: content of the lock object, and the log in it
- `machine`, `driver`: lease protocol
- `acquire`, `polling`: waiting for the lock
- `publisher`: fenced publish
- `combine`, `committer`: group commit
- `lock`, `lease`, `provider`: what users hold
- `metrics`, `audit`, `status`: observers
"""
