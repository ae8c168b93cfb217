"""Table services that rewrite no rows."""
