"""What is left to the session itself: how many rows it hands to Python at once, and which files it reads.

May import: what Spark's other modules may.
"""
