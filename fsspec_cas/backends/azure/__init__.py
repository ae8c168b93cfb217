"""Azure Blob Storage through its SDK."""
