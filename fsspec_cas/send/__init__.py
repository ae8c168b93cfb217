"""How one operation is sent, repeated, settled and driven, until what it came to is known.

    resolve  what an answer, or none, says of a conditional write: a table; pure
    retry    how long to pause before the next try; pure
    tries    whether there is time for another try
    drive    async operations for sync callers
    begun    operations that go on in the background

May import: errors, outcome, version, answer and below.
"""
