"""Leader election: one of many candidates leads, the others wait: `lockprovider.election`.

    election = lockprovider.election.open("s3://bucket/jobs/compactor.json", name="vm-7")
    election.run(lambda term: table.under(term).compact())

`decide.py` defines the stored bytes, and decides who may lead, for how long, and what observers see (pure). `term.py`
has the candidate's requests, the term, and the end of its work. `election.py` has `Election` and `AsyncElection`.
"""
