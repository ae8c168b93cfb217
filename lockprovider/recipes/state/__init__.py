"""JSON document with a history that many processes change and edit: `lockprovider.state`."""
