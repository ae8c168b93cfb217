"""One of many leads, the others wait: `lockprovider.election`.

    election = lockprovider.election.open("s3://bucket/jobs/compactor.json", name="vm-7")
    election.run(lambda term: compact(table, fence=term))

`record.py` is what is stored, `decide.py` who may lead and believe so, `reports.py` what onlookers are told (pure);
`candidate.py` asks the store, `term.py` is what the elected has, `work.py` stops what it does; `Election` and
`AsyncElection` are the front.
"""

from lockprovider.recipes.election.aio import AsyncElection, AsyncTerm
from lockprovider.recipes.election.election import Election
from lockprovider.recipes.election.reports import Elected, Lapsed, Leader, LeaderChange, Resigned
from lockprovider.recipes.election.term import Term
from lockprovider.recipes.election.work import Deposed
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
