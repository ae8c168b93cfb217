"""A JSON document with a history that many processes read, change and edit: `lockprovider.state`.

    state = lockprovider.state.open("s3://bucket/pipelines/orders.json", default=dict)
    state.update(lambda s: {**s, "watermark": new})

`document.py` defines the stored bytes. `changes.py` has the changes, and decides how a write ends. Both are pure.
`writer.py` writes for all callers of a process. `state.py` has `State` and `AsyncState`. `terraform.py` serves
Terraform.
"""
