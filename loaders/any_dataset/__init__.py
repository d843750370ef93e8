"""Loaders for any dataset: a builder, a factory with its config, and a data module for training and validation."""
