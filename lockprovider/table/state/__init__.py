"""The open table: state that one process reads and caches.

May import: files, timeline, format and below.
"""
