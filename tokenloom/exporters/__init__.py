"""The exporters: a built dataset written to files that other libraries read.

The layouts are listed here by name, so that listing them loads none.
"""

LAYOUTS = {
    "hf": ("row_layouts.SavedToDisk", "a folder for datasets.load_from_disk"),
    "parquet": ("row_layouts.ParquetFiles", "Parquet files"),
    "trl": ("row_layouts.PreparedForTrl", "columns as TRL's SFT, DPO and KTO trainers prepare them"),
    "axolotl": ("row_layouts.Axolotl", "pre-tokenized rows for axolotl"),
    "llamafactory": ("row_layouts.LlamaFactory", "a tokenized_path of LLaMA-Factory"),
    "skyrl": ("row_layouts.SkyRl", "pretokenized rows for SkyRL"),
    "megatron": ("flat_layouts.MegatronIndexed", ".bin and .idx files of Megatron, with loss masks"),
    "megatron-sft": ("row_layouts.MegatronPacked", "packed Parquet files of Megatron-Bridge"),
    "olmo": ("flat_layouts.OlmoArrays", "token arrays and label masks of OLMo-core"),
    "mds": ("flat_layouts.MosaicShards", "shards of MosaicML Streaming"),
    "jsonl": ("row_layouts.JsonLines", "texts, with what is trained marked"),
}
"""The class of each layout, by module and name, and what it writes."""
