"""One suite of promises, run on every store."""
