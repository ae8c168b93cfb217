"""Codecs of Hudi's names and bytes.

May import: errors, `fsspec_cas`, and `lockprovider` outside `table`. Pure: reads no file but those of `table/schemas`.
"""
