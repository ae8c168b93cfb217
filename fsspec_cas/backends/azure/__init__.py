"""Azure Blob Storage.

    client   sends requests through the SDK, with the account and credential of an adlfs filesystem
    answers  what the store says; pure

May import: what vendors share, one level up.
"""
