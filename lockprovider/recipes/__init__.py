"""Recipes on conditional writes: states, queues, logs, elections."""
