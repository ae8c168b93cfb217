"""Azure Blob Storage: `client` sends requests through its SDK, `answers` interprets replies."""
