"""What is wrong with a table: facts are gathered, pure rules look at them, findings say what to do.

May import: state and below. Promised: nothing is written.
"""
