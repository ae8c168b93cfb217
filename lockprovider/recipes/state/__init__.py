"""JSON document with a history that many processes read, change and edit: `lockprovider.state`.

`document.py` has the stored bytes, `changes.py` the changes (both pure); `writer.py` writes, `state.py` has `State`,
`terraform.py` serves Terraform.
"""
