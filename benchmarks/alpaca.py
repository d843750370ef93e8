"""The rows that benchmarks run on: those of Alpaca if $TOKENLOOM_REAL_DATA is set, else those of the quickstart."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tokenloom import DataPipeline

PIPELINES = Path(__file__).parent.parent / "tokenloom" / "pipelines"


def source(folder: Path) -> tuple[list[dict[str, str]], str]:
    """Return rows with a non-empty output, and the folder of their tokenizer."""
    real = os.environ.get("TOKENLOOM_REAL_DATA")
    if real:
        rows = json.loads((Path(real) / "instruct" / "alpaca_data.json").read_text(encoding="utf-8"))
        return [row for row in rows if row["output"].strip()], str(Path(real) / "tokenizers" / "phi-2")
    pipeline = DataPipeline.from_config(PIPELINES / "quickstart.yaml", store=folder / "quickstart").unwrap()
    tokenizer = pipeline.get_dataset().unwrap().tokenizer_path
    lines = (PIPELINES / "samples" / "quickstart.jsonl").read_text(encoding="utf-8").splitlines()
    conversations = [[message["content"] for message in json.loads(line)["messages"]] for line in lines]
    return [{"instruction": contents[-2], "input": "", "output": contents[-1]} for contents in conversations], tokenizer


def write_rows(path: Path, rows: list[dict[str, str]], count: int) -> None:
    """Write `count` distinct rows as JSONL, repeating `rows` with a running number in each instruction."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            row = rows[number % len(rows)]
            distinct = {**row, "instruction": f"{number // len(rows)}. {row['instruction']}"}
            file.write(json.dumps(distinct, ensure_ascii=False) + "\n")
