"""Diagnosis of a table: `facts` gathers facts, pure `rules` check them, and findings say what to do."""
