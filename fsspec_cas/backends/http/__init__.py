"""Which HTTP answers a backend believes.

A backend believes an answer only with a proof that the store wrote it; the status alone proves nothing. Gateways,
captive portals, caches and credential services answer too.

    reply      a request, its reply, and what a dialect makes of it: types
    s3, gcs, azure
               one dialect each: a pure function from a reply to what the store said
    meaning    what the store's words mean for each request: a table
    listener   one exchange: send, hear, and confirm where the reply alone proves nothing

May import: `fsspec_cas.answer` and below.
"""
