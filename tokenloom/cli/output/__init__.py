"""Where and in which layouts commands write files."""
