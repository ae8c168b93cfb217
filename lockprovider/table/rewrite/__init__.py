"""Services that rewrite rows, and so write files as writers do: compaction, clustering.

May import what stands below `engines`. Promised: no row is changed, and whoever runs one again comes to the same.
"""
