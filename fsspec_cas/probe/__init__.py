"""Probe of a store's real behaviour, for users to run before they trust it."""
