"""The idiom to compare with: `datasets.map` with a tokenizer, the prompt masked by offsets, saved as Arrow.

usage: datasets_map.py ROWS.jsonl TOKENIZER_DIR OUT_DIR [PROCESSES]
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

from datasets import Dataset, load_dataset
from transformers import AutoTokenizer

TEMPLATE = "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"


def main(rows: str, tokenizer_folder: str, out: str, processes: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)

    def encode(batch: dict[str, list[str]]) -> dict[str, Any]:
        columns = zip(batch["instruction"], batch["input"], batch["output"], strict=True)
        parts = [(TEMPLATE.format(instruction=a, input=b), c) for a, b, c in columns]
        encoded = tokenizer(
            [prompt + answer for prompt, answer in parts], return_offsets_mapping=True, truncation=True, max_length=2047
        )
        ids = [[*row, tokenizer.eos_token_id] for row in encoded["input_ids"]]
        labels = [
            [token if end > len(prompt) else -100 for token, (_, end) in zip(row, offsets, strict=False)]
            + [tokenizer.eos_token_id]
            for row, offsets, (prompt, _) in zip(ids, encoded["offset_mapping"], parts, strict=True)
        ]
        return {"input_ids": ids, "labels": labels}

    with tempfile.TemporaryDirectory() as cache:
        loaded: Any = load_dataset("json", data_files=rows, split="train", cache_dir=cache)
        source: Dataset = loaded
        source.map(encode, batched=True, remove_columns=source.column_names, num_proc=processes).save_to_disk(out)


if __name__ == "__main__":
    rows, tokenizer_folder, out = sys.argv[1:4]
    main(rows, tokenizer_folder, out, int(sys.argv[4]) if len(sys.argv) > 4 else 2)
