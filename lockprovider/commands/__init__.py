"""Commands of `lockprovider`, registered by the `add...` functions of the files; `lockprovider/cli.py` calls these."""
