"""Hours of what the other tests do in seconds."""
