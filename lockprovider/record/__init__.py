"""What the lock object holds, and what can be read off it: the record, its log, the pending publish, who waits.

May import: errors, settings. Pure: no store, no clock, no thread.
Promised: what is decoded is encoded again byte for byte, unless somebody else's fields were in it.
"""
