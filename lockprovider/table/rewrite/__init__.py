"""Services that rewrite rows into new files."""
