"""Time create_collate_fn against transformers' DataCollatorForSeq2Seq on batches of ragged rows.

usage: collation.py [--rows N] [--length N] [--runs N]

Rows have input_ids, attention_mask and labels of 1 to --length tokens, as lists, arrays or tensors. The script checks
that both collators return the same int64 tensors. Prints the CPU time per batch of each, and their ratio.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import median_seconds
from tokenizers import Tokenizer, models

from tokenloom.loaders import create_collate_fn

os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "lists": np.ndarray.tolist,
    "arrays": np.asarray,
    "tensors": torch.from_numpy,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--runs", type=int, default=50)
    options = parser.parse_args()
    theirs, ours, noise = transformers_collator(), create_collate_fn(0), np.random.default_rng(0)
    lengths = noise.integers(1, options.length + 1, options.rows)
    print(f"{options.rows} rows of 1 to {options.length} tokens, {lengths.sum():,} in all")
    ids = [noise.integers(1, 50_000, length) for length in lengths]
    for name, form in FORMS.items():
        columns = [{"input_ids": row, "attention_mask": np.ones_like(row), "labels": row} for row in ids]
        rows = [{column: form(values) for column, values in row.items()} for row in columns]
        expected = theirs(rows)
        assert all(torch.equal(values, expected[column]) for column, values in ours(rows).items())
        slow, fast = (
            median_seconds(lambda f=f, rows=rows: f(rows), options.runs, time.process_time) for f in (theirs, ours)
        )
        print(f"{name:8} {slow * 1e3:6.2f} ms against {fast * 1e3:5.2f} ms: {slow / fast:5.1f} times as fast")


def transformers_collator() -> Callable[[Any], Any]:
    """Return a collator of transformers that pads with token 0."""
    from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokenizer.json"
        Tokenizer(models.WordLevel({"<pad>": 0}, unk_token="<pad>")).save(str(file))
        return DataCollatorForSeq2Seq(PreTrainedTokenizerFast(tokenizer_file=str(file), pad_token="<pad>"))


if __name__ == "__main__":
    main()
