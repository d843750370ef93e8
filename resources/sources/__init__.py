"""Where a dataset's rows come from.

`resolve` finds out what `dataset.name` means: local or remote files (`source_file`), a folder written by
`save_to_disk`, a dataset on the Hugging Face Hub (`hub`), or one prepared by tensorflow_datasets (`tfds`).
"""
