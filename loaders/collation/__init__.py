"""Builds batches from lists of rows: collate functions, the columns and padding of a batch, and collators by task.

`text` also selects what a model takes from a batch; `context` makes the attention masks of trees.
"""
