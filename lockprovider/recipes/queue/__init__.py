"""Message queue with many producers and workers, in one object: `lockprovider.queue`."""
