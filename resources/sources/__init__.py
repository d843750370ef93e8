"""The sources of a dataset's rows.

`resolve` determines what `dataset.name` means: local or remote files (`source_file`), a folder written by
`save_to_disk`, a dataset on the Hugging Face Hub (`hub`), or one prepared by tensorflow_datasets (`tfds`).
"""
