"""Google Cloud Storage: `client` sends requests over its JSON API, `answers` interprets replies."""
