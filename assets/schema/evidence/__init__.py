"""What speaks for the role of a column, and what against it.

`profiles` asks how well a column's values fit a role, with `speakers` for conversations; `name_similarity` compares its
name with the usual names of roles. `unused_columns` finds the columns that a reading would not use, and `doubts` what
else contradicts it.
"""
