"""Table services that rewrite no rows: rollback, restore, savepoints, clean, archive, sharing, anchors, metadata table.

Any process may continue the stored plan of a dead executor.
"""
