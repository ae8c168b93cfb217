"""Cloud Storage, over its JSON API.

    backend  requests with the credentials and settings of a gcsfs filesystem

May import: `fsspec_cas.backends.http` and below.
"""
