"""Probe of a store's real behaviour, which users run before they trust the store.

It imports only the store and lower modules.
"""
