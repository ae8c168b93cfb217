"""Diagnosis of a table: `facts` gathers facts, and pure `rules` check them."""
