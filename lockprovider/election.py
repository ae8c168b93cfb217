"""Public names of `lockprovider.recipes.election`.

Example: `election = lockprovider.election.open("s3://bucket/jobs/compactor.json")`.
"""

from lockprovider.recipes.election.decide import Elected, Lapsed, Leader, LeaderChange, Resigned
from lockprovider.recipes.election.election import AsyncElection, AsyncTerm, Election
from lockprovider.recipes.election.term import Deposed, Term
from lockprovider.recipes.errors import CoordinationError, MalformedObject, NotElected, TermLost

open = Election.open  # noqa: A001 - it reads as lockprovider.election.open

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
