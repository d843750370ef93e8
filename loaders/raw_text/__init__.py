"""Small texts that are tokenized as they are opened."""
