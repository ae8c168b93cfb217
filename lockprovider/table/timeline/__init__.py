"""What is decided from names and metadata alone: timeline, snapshot view, conflicts, retention, archival.

May import: format and below. Pure: nobody is asked, nothing is read.
"""
