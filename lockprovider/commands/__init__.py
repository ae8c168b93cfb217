"""Commands of `lockprovider`; `lockprovider/cli.py` calls their `add...` functions."""
