"""The lock as a whole: known bugs of others, real processes."""
