"""One document that many read, change and edit, with a history: `lockprovider.state`.

    state = lockprovider.state.open("s3://bucket/pipelines/orders.json", default=dict)
    state.update(lambda s: {**s, "watermark": new})

`document.py` is what is stored, `changes.py` what may be done to it, and how a write comes to its end (pure);
`writer.py` writes for all callers of a process; `state.py` has `State` and `AsyncState`, `terraform.py` what Terraform
needs.
"""
