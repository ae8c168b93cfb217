"""Clients in memory whose time and requests a test rules."""

from simulate.town import town  # noqa: F401
