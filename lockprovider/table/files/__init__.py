"""Data files of a table, without lock and transaction."""
