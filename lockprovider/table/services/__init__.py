"""Table services that rewrite no row: rollback, restore, savepoint, clean, archive, and the like.

Each has a plan, an execution and a completion (`plans`), which any process may run and repeat. May import: state and
below, and of each other only the pairs listed in tests/test_tidy.py.
"""
