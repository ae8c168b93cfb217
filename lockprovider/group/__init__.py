"""Group commit: one conditional write of the lock record decides for all who wait.

    intent     what is to be decided, and how it is named where it waits; pure
    combine    which intents one write decides, what became of one, and what to do next; pure
    intents    the intents in the store
    committer  one client: writes straight, posts, or is on duty

May import: publish, lease, record and below. Promised: a publish is decided once or never; see `combine`.
"""
