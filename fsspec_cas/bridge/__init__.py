"""Bridge between sync callers, async code and threads."""
