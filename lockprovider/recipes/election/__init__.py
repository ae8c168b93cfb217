"""One of many leads, the others wait: `lockprovider.election`.

    election = lockprovider.election.open("s3://bucket/jobs/compactor.json", name="vm-7")
    election.run(lambda term: table.under(term).compact())

`decide.py` is what is stored, who may lead and believe so, and what onlookers are told (pure); `term.py` has the
candidate, who asks the store, what the elected has, and what stops its work; `election.py` has `Election` and
`AsyncElection`.
"""
