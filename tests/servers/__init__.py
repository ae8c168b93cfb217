"""Real storage servers on loopback, started by the fixtures that ask for them."""
