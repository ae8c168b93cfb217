"""Bridge between sync callers and async code, and between callers and threads.

`drive` runs coroutines for sync callers, `background` calls on threads, `tasks` blocking calls for tasks.
"""
