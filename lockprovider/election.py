"""Elections: `lockprovider.recipes.election` by its public name.

election = lockprovider.election.open("s3://bucket/jobs/compactor.json")
"""

from lockprovider.recipes.election import (
    AsyncElection,
    AsyncTerm,
    CoordinationError,
    Deposed,
    Elected,
    Election,
    Lapsed,
    Leader,
    LeaderChange,
    MalformedObject,
    NotElected,
    Resigned,
    Term,
    TermLost,
    open,  # noqa: A004 - it reads as lockprovider.election.open
)

__all__ = [
    "AsyncElection",
    "AsyncTerm",
    "CoordinationError",
    "Deposed",
    "Elected",
    "Election",
    "Lapsed",
    "Leader",
    "LeaderChange",
    "MalformedObject",
    "NotElected",
    "Resigned",
    "Term",
    "TermLost",
    "open",
]
