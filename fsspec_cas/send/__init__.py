"""How one operation is sent, repeated and settled, until what it came to is known.

    resolve  what an answer, or none, says of a conditional write: a table; pure
    retry    how long to pause before the next try; pure
    tries    whether there is time for another try
    sender   the loop that asks a backend, and does what these three say

May import: backends and below.
"""
