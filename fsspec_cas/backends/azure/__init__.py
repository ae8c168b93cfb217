"""Azure Blob Storage.

    backend  through the SDK, with the account and credential of an adlfs filesystem

May import: `fsspec_cas.backends.http` and below.
"""
