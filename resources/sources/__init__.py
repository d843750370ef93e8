"""The sources of a dataset's rows.

`resolve` determines what `dataset.name` means: local or remote files (`source_file`, or `large_file` for one that is
read from several places), a folder of files (`data_folder`), or a dataset on the Hugging Face Hub or of
tensorflow_datasets (`hub`).
"""
