"""Commands of `lockprovider`, registered by the `add` or `add_<command>` functions of their files. Other files help."""
