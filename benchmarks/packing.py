"""Time packing on the lengths of Alpaca's rows, alone and within the sequences stage.

usage: packing.py [--rows N] [--max-length N] [--runs N]

Rows are those of Alpaca with phi-2's tokenizer if $TOKENLOOM_REAL_DATA is set, else those of the quickstart, in the
chunks of a build. Prints for each packing how full its sequences are, and rows per second: for the packing alone, and
for everything that the stage computes for a chunk of tokens.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import yaml
from alpaca import source, write_rows
from timing import median_seconds

from tokenloom.assets.building.build import Build
from tokenloom.assets.sequences.packing import STRATEGIES, to_sequences
from tokenloom.config import LengthConfig, PipelineConfig
from tokenloom.resources.engines.engine import cpu_count
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.tables.ragged import list_parts

TEMPLATE = "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n{output}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=51_974)
    parser.add_argument("--max-length", type=int, default=2048)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    longest = options.max_length
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-") as name:
        folder = Path(name)
        rows, tokenizer = source(folder)
        write_rows(folder / "rows.jsonl", rows, options.rows)
        settings = {
            "dataset": {"name": "rows.jsonl"},
            "tokenizer": {"name_or_path": tokenizer, "max_length": longest},
            "prompt_template": {"format_type": "custom", "template": TEMPLATE, "label_column": "output"},
        }
        (folder / "rows.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        build = Build(PipelineConfig.from_file(folder / "rows.yaml"), ArtifactStore(folder / "store"))
        list(build.run_all("tokens"))
        tables = [chunk.load() for chunk in build.input_chunks("tokens")]
    lengths = [np.minimum(np.diff(list_parts(table["input_ids"])[0]), longest) for table in tables]
    tokens, count = sum(int(chunk.sum()) for chunk in lengths), sum(map(len, lengths))
    print(f"{count:,} rows, {tokens:,} tokens in {len(tables)} chunks, {cpu_count()} cores, one used")
    for packing, pack in STRATEGIES.items():
        length = LengthConfig.model_validate({"packing": packing})
        sequences = sum(len(pack(chunk, longest).pieces) for chunk in lengths)
        alone = median_seconds(lambda pack=pack: [pack(chunk, longest) for chunk in lengths], options.runs)
        stage = median_seconds(
            lambda length=length: [to_sequences(table, length, longest) for table in tables], options.runs
        )
        print(
            f"{packing:9} {tokens / sequences / longest:7.2%} full, {sequences:,} sequences; "
            f"packing {count / alone:,.0f} rows/s, stage {count / stage:,.0f} rows/s"
        )


if __name__ == "__main__":
    main()
