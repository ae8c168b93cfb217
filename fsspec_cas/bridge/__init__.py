"""Bridge between sync callers and async code, and between callers and threads.

    drive       runs async operations for sync callers, and derives sync methods of an async class
    background  runs calls on threads of this library, and returns futures
    tasks       runs blocking calls for tasks of an event loop

It imports only clock, errors and lower modules. A cancelled call never looks like a finished one.
"""
