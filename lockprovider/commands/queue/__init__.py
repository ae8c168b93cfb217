"""`lockprovider queue`: put messages, work on them with a command, look at what is there."""
