"""S3 through a lean client with obstore's settings: `client` signs requests, `connections` keeps connections."""
