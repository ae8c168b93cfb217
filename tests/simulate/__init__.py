"""The real lock over a store that lies and clocks that differ."""
