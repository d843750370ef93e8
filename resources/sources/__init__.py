"""The sources of a dataset's rows.

`resolve` determines what `dataset.name` means: local or remote files (`source_file`; `large_file` has several readers
of one), a folder of files (`data_folder`), or a dataset on the Hugging Face Hub or of tensorflow_datasets (`hub`).
"""
