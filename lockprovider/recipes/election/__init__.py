"""One of many leads, the others wait: `lockprovider.election`.

    election = lockprovider.election.open("s3://bucket/jobs/compactor.json", name="vm-7")
    election.run(lambda term: table.under(term).compact())

`record.py` is what is stored, `decide.py` who may lead and believe so, `reports.py` what onlookers are told (pure);
`candidate.py` asks the store, `term.py` is what the elected has, `work.py` stops what it does; `Election` and
`AsyncElection` are the front.
"""
