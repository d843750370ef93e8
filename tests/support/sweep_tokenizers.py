"""The tokenizers of the sweep over chat templates: three small ones trained here, and two real ones."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from support.small_tokenizers import CONTROL, CORPUS, SaveTokenizer, byte_level
from support.soak import REAL_DATA
from support.token_bytes import Vocabulary

TINY, SHARED = ("bytes", "pieces", "swallowing"), ("phi-2", "bert-base-cased")


@dataclass(frozen=True)
class Model:
    """A tokenizer's folder, its vocabulary, and its special tokens."""

    folder: Path
    vocabulary: Vocabulary
    bos: str
    eos: str

    @property
    def control(self) -> set[str]:
        return {*self.vocabulary.special.values(), self.bos, self.eos}


def load(name: str, folder: Path, save_tokenizer: SaveTokenizer) -> Model:
    """Return a tokenizer by name; small ones are trained in the folder."""
    if name in TINY:
        make = {"bytes": byte_level, "pieces": pieces, "swallowing": swallowing}
        tokenizer, bos, eos = make[name](), "<s>", "</s>"
        folder = save_tokenizer(tokenizer, folder / name, bos_token=bos, eos_token=eos)
    else:
        assert REAL_DATA
        folder = REAL_DATA / "tokenizers" / name
        bos, eos = ("<|endoftext|>",) * 2 if name == "phi-2" else ("[CLS]", "[SEP]")
    return Model(folder, Vocabulary(folder), bos, eos)


def swallowing() -> Tokenizer:
    """Return a byte-level BPE whose control tokens swallow white space: stops before them, all others after them."""
    parsed = json.loads(byte_level().to_str())
    for token in parsed["added_tokens"]:
        stops = token["content"] in ("</s>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>")
        token.update(lstrip=stops, rstrip=not stops)
    return Tokenizer.from_str(json.dumps(parsed))


def pieces() -> Tokenizer:
    """Return a BPE like SentencePiece's, with byte fallback, that adds BOS before every text."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    rare = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=["<unk>", *CONTROL, *rare], initial_alphabet=["▁"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    parsed = json.loads(tokenizer.to_str())
    parsed["added_tokens"] = [token for token in parsed["added_tokens"] if token["content"] not in rare]
    tokenizer = Tokenizer.from_str(json.dumps(parsed))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A"], special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer
