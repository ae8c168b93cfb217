"""Services that rewrite rows into new files: compaction, clustering.

May import: the layers below `engines`. No row is changed, and a repeated run has the same result.
"""
