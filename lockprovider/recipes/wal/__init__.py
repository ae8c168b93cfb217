"""Log with many writers and many readers, in a ring of objects: `lockprovider.wal`."""
