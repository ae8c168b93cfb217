"""Cloud Storage, over its JSON API.

    client   sends requests, with the credentials and settings of a gcsfs filesystem
    answers  what the store says; pure

May import: what vendors share, one level up.
"""
