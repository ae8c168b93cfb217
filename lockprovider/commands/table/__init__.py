"""The commands about tables, as `lockprovider table` has them."""
