"""Log with many writers and readers, in a ring of objects: `lockprovider.wal`."""
