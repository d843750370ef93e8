"""media: canonical rows whose images are in the store."""
