"""S3 and compatible stores through a lean client, with the settings of an obstore filesystem.

    client       signs requests, and interprets replies as `backends/s3` does
    connections  keeps connections, with the standard library

It imports only `backends/s3` and the modules that vendors share, one level up.
"""
