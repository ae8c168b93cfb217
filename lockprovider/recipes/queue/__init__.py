"""Message queue with many producers and workers: `lockprovider.queue`."""
