"""Recipes on conditional writes. A recipe imports neither the lock's record nor another recipe."""
