"""Azure Blob Storage, through its SDK.

    client   sends requests through the SDK, with the account and credential of an adlfs filesystem
    answers  interprets the replies; no I/O

It imports only the modules that vendors share, one level up.
"""
