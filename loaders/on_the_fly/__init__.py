"""Rows that are encoded as they are read or asked for, through the pipeline's own stages."""
