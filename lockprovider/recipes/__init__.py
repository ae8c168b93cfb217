"""Recipes on conditional writes: states, queues, logs, elections.

A recipe imports neither the lock's record nor another recipe.
"""
