"""Builds batches from lists of rows: collate functions, the columns and padding of a batch, and collators by task.

`model_inputs` selects what a model takes from a batch; `tree_masks` makes the attention masks of trees.
"""
