"""Group commit: one conditional write of the lock record decides for all who wait.

    intent           what is to be decided, and how it is named where it waits; pure
    combine          which intents one write decides, what became of one, and what to do next; pure
    intents          the intents in the store
    commit_requests  who waits for a decision here, and what became of it
    applying         what was decided is put there, in the order of the log
    record_writer    the lock record, read and written
    member           one client, a step at a time: writes straight, posts, or is on duty
    committer        its thread, and its front

May import: publish, lease, record and below. Promised: a publish is decided once or never; see `combine`.
"""
