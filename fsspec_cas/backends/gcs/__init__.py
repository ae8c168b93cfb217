"""Google Cloud Storage, over its JSON API.

    client   sends requests, with the credentials and settings of a gcsfs filesystem
    answers  interprets the replies; no I/O

It imports only the modules that vendors share, one level up.
"""
