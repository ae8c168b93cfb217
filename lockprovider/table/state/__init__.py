"""The open table: state that one process reads and caches; an answer may be out of date.

May import: files, timeline, format and below.
"""
