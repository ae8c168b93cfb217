"""Engines read file slices and write files; they know no protocol.

May import: transaction, read and below. Each stands by itself, but for what they share: `scan`, `writer`, `changes`.
"""
