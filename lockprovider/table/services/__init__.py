"""What keeps a table in order and rewrites no row: rollback, restore, savepoint, clean, archive, and the like.

Each is a plan, its execution and its completion (`plans`), by anybody and again and again. May import: state and below,
and of each other only what is written in tests/test_tidy.py.
"""
