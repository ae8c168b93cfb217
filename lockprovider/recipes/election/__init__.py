"""Leader election, `lockprovider.election`: one of many candidates leads, the others wait.

    election = lockprovider.election.open("s3://bucket/jobs/compactor.json", name="vm-7")
    election.run(lambda term: table.under(term).compact())

`decide.py` has the stored bytes and the decisions (pure), `term.py` the requests and the term.
"""
