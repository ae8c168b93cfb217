"""Probe of a store's real behaviour."""
