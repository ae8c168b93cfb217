"""Leader election, `lockprovider.election`."""
