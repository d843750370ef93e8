"""sidecars: the values of `dataset.keep_columns`, in one object per chunk, which come with each batch.

They are computed from raw rows alone, after `sequences`. No digest of sequences covers them.
"""
