"""Names of the layouts of exported files, apart from their classes, which the command's help does not load."""

SUMMARIES = {
    "hf": "a folder for datasets.load_from_disk",
    "parquet": "Parquet files",
    "trl": "columns as TRL's SFT, DPO and KTO trainers prepare them",
    "axolotl": "pre-tokenized rows for axolotl",
    "llamafactory": "a tokenized_path of LLaMA-Factory",
    "skyrl": "pretokenized rows for SkyRL",
    "megatron": ".bin and .idx files of Megatron, with loss masks",
    "megatron-sft": "packed Parquet files of Megatron-Bridge",
    "olmo": "token arrays and label masks of OLMo-core",
    "mds": "shards of MosaicML Streaming",
    "jsonl": "texts, with what is trained marked",
}
"""What each layout is, by name."""
