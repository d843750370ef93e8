"""Preference and KTO rows whose prompts tell them apart, as tables in canonical form."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa

from support.canonical_tables import CHATML, Row, config_of, said, table_of
from tokenloom.config import PipelineConfig

LONGEST = 64


ROWS = 23


CHUNKS = (10, 9, 4)


def rows_of(form: str) -> list[Row]:
    """Rows whose prompts tell them apart; both sides differ in length."""
    draw = random.Random(form)
    rows = []
    for number in range(ROWS):
        prompt = [said("user", f"q{number} " + "word " * draw.randrange(4) + "?")]
        answers = [[said("assistant", " ".join(["naïve"] * draw.randrange(1, 6)) + end)] for end in ("!", ".")]
        if form == "preference":
            rows.append({"prompt": prompt, "chosen": answers[0], "rejected": answers[1]})
        else:
            rows.append({"prompt": prompt, "completion": answers[0], "label": number % 3 == 0})
    return rows


def tables_of(form: str) -> list[pa.Table]:
    rows = iter(rows_of(form))
    return [table_of(form, [next(rows) for _ in range(count)]) for count in CHUNKS]


def config(tokenizer_folder: Path) -> PipelineConfig:
    return config_of(tokenizer_folder, {"add_eos": False}, CHATML, tokenizer={"max_length": LONGEST})
