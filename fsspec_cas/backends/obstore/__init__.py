"""S3 through a lean client with obstore's settings."""
