"""Collators, which build a batch from the rows of one modality, and the registry that chooses among them."""
