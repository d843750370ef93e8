"""What speaks for the role of a column, and what against it.

`profiles` asks how well a column's name and values fit a role, with `speakers` for conversations. `doubts` finds what
contradicts it, such as columns that a reading would not use, and `training_flags` columns that say what is trained.
"""
