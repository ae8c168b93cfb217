"""Hudi's names and bytes: instants, paths, metadata, properties, schemas, filters. Codecs only.

May import: errors. Pure: bytes and names in, nouns out, and back.
"""
