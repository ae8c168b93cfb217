"""Table services that rewrite no rows: rollback, restore, savepoints, clean, archive, sharing and the metadata table.

A long service stores its plan, executes it and completes it (`plans`). Any process may continue the plan of a dead
executor.
"""
