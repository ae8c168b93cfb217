"""S3 and its kin by a client of our own, which takes the settings of an obstore filesystem.

    client       signs requests, and hears them as `backends/s3` does
    connections  keeps connections, over the standard library

May import: `backends/s3`, and what vendors share, one level up.
"""
