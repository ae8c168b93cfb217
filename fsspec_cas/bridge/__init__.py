"""Between callers and what runs for them: sync callers and async code, callers and threads.

    drive       async operations for sync callers
    twin        methods of an async class, for sync callers: each is written once
    background  calls on threads of this library, begun at once
    later       the result of such a call
    tasks       blocking calls and methods, for tasks of an event loop

May import: clock, errors and below. Promises that no call that was cancelled looks like one that finished.
"""
