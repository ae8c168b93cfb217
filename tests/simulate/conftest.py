"""The town is shared with the other tests of the lock."""

from simulate.town import town  # noqa: F401
