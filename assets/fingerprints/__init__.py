"""fingerprints: of each row, what shows whether another row is the same or similar."""
