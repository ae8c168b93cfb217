"""Hudi's storage lock (RFC-91), publishes fenced by it, and group commit."""
