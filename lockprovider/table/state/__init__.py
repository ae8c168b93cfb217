"""An open table: state that one process reads and caches."""
