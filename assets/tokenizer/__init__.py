"""tokenizer: the files of the dataset's tokenizer, given or trained on the dataset.

- `stage`: the stage. `probe` trains a tokenizer on fixed texts.
- `train`: trains a byte-level BPE.
- `contract`: the columns of the stored files, and the checks that they must pass.
"""
