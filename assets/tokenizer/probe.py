"""The probe of `tokenizer`: the files of a tokenizer trained on fixed texts."""

from __future__ import annotations

import pyarrow as pa

from tokenloom.assets.stage.fixed_texts import FIXED_TEXTS
from tokenloom.assets.tokenizer.stage import exported
from tokenloom.assets.tokenizer.train import train
from tokenloom.config import TrainConfig
from tokenloom.resources.tokenizers import TokenizerSpec

SPEC = TokenizerSpec({}, "<s>", "</s>", None, None, ("<|user|>", "</s>", "<s>"), "{{ messages }}", "<s>")


def probe() -> list[pa.Table]:
    return [exported(trained(), SPEC).table]


def trained() -> bytes:
    """Return tokenizer.json of a byte-level BPE."""
    texts = pa.array([*FIXED_TEXTS, *(text.lower() for text in FIXED_TEXTS)], pa.string())
    return train([texts], TrainConfig(vocab_size=320), SPEC)
