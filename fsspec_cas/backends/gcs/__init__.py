"""Google Cloud Storage over its JSON API."""
