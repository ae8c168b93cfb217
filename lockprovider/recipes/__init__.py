"""Recipes on conditional writes (state files, queues, logs, elections), and the code that they share.

A recipe imports neither the lock's record nor another recipe.
"""
