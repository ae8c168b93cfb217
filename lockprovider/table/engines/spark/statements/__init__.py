"""SQL that changes rows of a table: `statement` takes the text apart, `views` knows the names, `run` carries it out.

May import: what Spark's other modules may, and them. `statement` alone needs sqlglot.
"""
