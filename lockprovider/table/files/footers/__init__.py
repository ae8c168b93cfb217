"""What the footers of base files say: of keys, and of the ranges of columns; kept, and put beside the lock."""
