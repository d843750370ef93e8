"""tokenizer: the files of the dataset's tokenizer, given or trained on the dataset."""
