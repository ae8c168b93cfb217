"""Between callers and what runs for them: sync callers and async code, callers and threads.

    drive       async operations for sync callers, and methods of an async class: each is written once
    background  calls on threads of this library, begun at once, and their results
    tasks       blocking calls and methods, for tasks of an event loop

May import: clock, errors and below. Promises that no call that was cancelled looks like one that finished.
"""
