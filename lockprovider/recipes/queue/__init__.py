"""Messages that many put and many work on, in one object: `lockprovider.queue`.

`contents.py` is what is stored, `operations.py` what may be done to it, which claims have lapsed, and how a broker is
told of it (pure); `writer.py` writes for all callers of a process; `Queue`, `AsyncQueue` and `Job` are the front.
"""
