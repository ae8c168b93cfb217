"""Commands of `lockprovider`, one file each. Every file offers `add(commands)`."""
