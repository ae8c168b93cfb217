"""S3 and its kin, by two clients.

    backend  through aiobotocore, with the settings of an s3fs filesystem
    client   aiobotocore's client: sends once, and hands each reply over before the library parses it

May import: `fsspec_cas.backends.http` and below.
"""
