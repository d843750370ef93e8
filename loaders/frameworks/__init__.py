"""Loaders for training frameworks other than PyTorch."""
