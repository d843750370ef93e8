"""Collators: what makes a batch of the rows of one modality, and the registry that chooses among them."""
