"""Codecs of Hudi's names and bytes: instants, paths, metadata, properties, schemas, filters.

May import: errors. Pure: no I/O.
"""
