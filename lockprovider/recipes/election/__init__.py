"""Leader election, `lockprovider.election`.

`decide.py` has the stored bytes and the decisions (pure), `term.py` the requests and the term.
"""
