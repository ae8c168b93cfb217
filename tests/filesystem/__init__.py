"""The fsspec filesystem `cas`."""
