"""`lockprovider wal`: append to a log, read and follow it, look at what is there."""
