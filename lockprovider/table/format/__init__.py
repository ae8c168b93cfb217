"""Codecs of Hudi's names and bytes.

Pure: reads no file but those of `table/schemas`.
"""
