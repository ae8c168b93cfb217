"""Engines read file slices and write files; they know no protocol."""
