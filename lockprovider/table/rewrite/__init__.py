"""Services that rewrite rows into new files, and change none: compaction, clustering."""
