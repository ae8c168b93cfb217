"""Table services that rewrite no rows. Any process may continue the stored plan of a dead executor."""
