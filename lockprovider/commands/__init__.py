"""Commands of `lockprovider`, registered by the `add...` function of each file."""
