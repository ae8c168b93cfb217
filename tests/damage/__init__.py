"""Objects that are damaged, hostile, or of another version."""
