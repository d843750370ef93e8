"""Writes a small store of the current format, with what a loader reads from it.

Run it with the code of a released version when the format of stores or states changes, and keep the older folders:

    python tests/upgrade/write_store.py tests/upgrade/store3
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from tokenloom import DataPipeline
from tokenloom.loaders import TokenLoader, batch_digest

YAML = """\
type: data_module
version: "1.0"
dataset:
  name: toy.jsonl
  val_split: 0.2
  keep_columns: [id]
tokenizer:
  train: {vocab_size: 270, min_frequency: 1}
  max_length: 32
  special_tokens: {eos: "<|endoftext|>", pad: "<|pad|>"}
prompt_template:
  format_type: custom
  template: "### {q}\\n{a}\\n"
  label_column: a
length: {strategy: truncate_right}
"""
STOP = 2
"""Steps after which the state is saved."""


def main(folder: Path) -> None:
    """Write `folder`, with the YAML, its rows, the store and `expected.json`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = [{"id": n, "q": f"What is {n} + {n}?", "a": f"It is {2 * n}."} for n in range(20)]
    (folder / "toy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "toy.yaml").write_text(YAML)
    pipeline = DataPipeline.from_config(folder / "toy.yaml", folder / "store").unwrap()
    dataset = pipeline.get_dataset().unwrap()
    loader = TokenLoader(dataset, batch_size=3, seed=5)
    state, digests = {}, []
    for step, batch in enumerate(loader, 1):
        digests.append(batch_digest(batch))
        if step == STOP:
            state = loader.state_dict()
    expected = {"digest": dataset.digest, "version": dataset.version, "batches": digests, "state": state, "stop": STOP}
    expected |= {"traced": [row.places for row in loader.trace(0)], "ids": [dataset[row]["id"] for row in range(3)]}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    for unused in ("files", "scratch"):
        shutil.rmtree(folder / "store" / unused, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
