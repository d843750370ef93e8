"""Tokenizers that make far more of a text than it has are refused before they run; known ones are not."""

from __future__ import annotations

import base64
import json
import random
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.paths import TOKENIZER_MODELS
from support.small_tokenizers import byte_level
from tokenloom.assets.tokens import engines
from tokenloom.assets.tokens.engines import Reference
from tokenloom.config import PipelineConfig
from tokenloom.errors import TokenizerError, TokenloomError
from tokenloom.resources.tokenizers import conversion, naming_tokenizer
from tokenloom.resources.tokenizers.tokenizer_json import USUAL_GROWTH, growth, growth_of
from tokenloom.resources.tokenizers.tokenizer_spec import resolve_tokenizer

BASE: dict[str, Any] = json.loads(byte_level().to_str())
FLAGS = {"special": False, "single_word": False, "lstrip": False, "rstrip": False}


def replacing(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": [*steps]}}


def charsmap(text: bytes) -> dict[str, Any]:
    table = struct.pack("<III", 8, 0, 0) + text
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def added(content: str) -> dict[str, Any]:
    return {"added_tokens": [{"id": len(BASE["model"]["vocab"]), "content": content, "normalized": True, **FLAGS}]}


def added_many(count: int) -> dict[str, Any]:
    first = len(BASE["model"]["vocab"])
    texts = [f"{'x' * 900}{number}" for number in range(count)]
    return {
        "added_tokens": [
            {"id": first + n, "content": text, "normalized": True, **FLAGS} for n, text in enumerate(texts)
        ]
    }


def word_pieces(**settings: Any) -> dict[str, Any]:
    vocab = {"[UNK]": 0, "x": 1, "##x": 2}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "vocab": vocab}
    return {"model": {**model, "max_input_chars_per_word": 100, **settings}, "pre_tokenizer": None, "added_tokens": []}


def unigram(*pieces: str) -> dict[str, Any]:
    vocab = [["<unk>", 0.0], *([piece, -1.0] for piece in pieces)]
    return {"model": {"type": "Unigram", "unk_id": 0, "vocab": vocab}, "pre_tokenizer": None, "added_tokens": []}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "itself": (sequence(*[replacing("x", "x" * 100)] * 4), "its normalizer can make"),
    "regexes": (sequence(*[replacing(".", "x" * 100, "Regex")] * 4), "its normalizer can make"),
    "one long text": ({"normalizer": replacing("x", "y" * 10_000)}, "its normalizer can make 20,000 characters of one"),
    "between all": ({"normalizer": replacing("", "y" * 10_000, "Regex")}, "its normalizer can make"),
    "look-aheads": (sequence(*[replacing("(?=x)", "x", "Regex")] * 40), "its normalizer can make"),
    "a letter after the other": (sequence(*(replacing(c, chr(ord(c) + 1) * 30) for c in "abcd")), "can make"),
    "through lower case": (
        sequence(replacing("x", "Y" * 90), {"type": "Lowercase"}, replacing("y", "z" * 90)),
        "can make 16,200 characters of one",
    ),
    "bytes as characters": (sequence(*[{"type": "ByteLevel"}] * 30), "can make 2,147,483,648"),
    "bytes of pre-tokenizers": (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 30}},
        "can make 1,073,741,824",
    ),
    "a long start": ({"normalizer": {"type": "Prepend", "prepend": "y" * 5000}}, "can make 10,002"),
    "a table": ({"normalizer": charsmap(b"y" * 5000)}, "can make 10,000"),
    "added tokens": (
        {**sequence(*[replacing("x", "x" * 40)] * 2), **added_many(20)},
        r"characters of the added tokens",
    ),
    "a long added token": (added("x" * 5000), "has 5,000 characters, more than 1,000"),
    "a prefix": (word_pieces(continuing_subword_prefix="#" * 5000), "continuing_subword_prefix has a text of 5,000"),
    "a suffix": ({"model": {**BASE["model"], "end_of_word_suffix": "#" * 5000}}, "end_of_word_suffix has a text"),
    "long words": (word_pieces(max_input_chars_per_word=10**6), "max_input_chars_per_word is 1,000,000, but at most"),
    "long pieces": (unigram(*("x" * count for count in range(1, 3000))), "vocab has a text of 2,999 characters"),
}


def resolved(folder: Path, parts: dict[str, Any]) -> Any:
    (folder / "tokenizer.json").write_text(json.dumps({**BASE, **parts}))
    return resolve_tokenizer(
        PipelineConfig.from_mapping({"dataset": {"name": "x"}, "tokenizer": {"name_or_path": str(folder)}})
    )


@pytest.mark.parametrize("case", REFUSED)
def test_a_tokenizer_that_multiplies_is_refused(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "check_tokenizer", lambda content: pytest.fail("it was loaded"))
    parts, message = REFUSED[case]
    with pytest.raises(TokenloomError, match=message) as raised:
        resolved(tmp_path, parts)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 300


KNOWN: dict[str, dict[str, Any]] = {
    "Llama": sequence({"type": "Prepend", "prepend": "▁"}, replacing(" ", "▁")),
    "ALBERT": sequence(
        replacing("``", '"'), replacing("''", '"'), {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
        replacing(" {2,}", " ", "Regex"),
    ),
    "quotes": sequence(*(replacing(f"[{c}]", "'", "Regex") for c in "‘’‚‛′‵ʹʻ")),
    "emoticons": sequence(replacing(":)", " smile "), replacing(":(", " sad "), replacing("<3", " love ")),
    "words": word_pieces(),
    "long tokens": added("=" * 999),
}  # fmt: skip


@pytest.mark.parametrize("case", KNOWN)
def test_known_tokenizers_are_not_measured(case: str, tmp_path: Path) -> None:
    content = resolved(tmp_path, KNOWN[case]).files["tokenizer.json"]
    assert growth_of(content) <= USUAL_GROWTH


@pytest.mark.parametrize("name", ["bpe.model", "unigram.model"])
def test_models_of_sentencepiece_are_not_measured(name: str) -> None:
    config = PipelineConfig.from_mapping(
        {"dataset": {"name": "x"}, "tokenizer": {"name_or_path": str(TOKENIZER_MODELS / name)}}
    )
    content = resolve_tokenizer(config).files["tokenizer.json"]
    assert growth_of(content) <= USUAL_GROWTH


def drawn(generator: random.Random) -> list[dict[str, Any]]:
    """Steps over few characters, so that they feed each other."""

    def text(most: int) -> str:
        return "".join(generator.choices("abAB", k=generator.randint(0, most)))

    others = [{"type": "Lowercase"}, {"type": "NFKD"}, {"type": "ByteLevel"}, {"type": "Prepend", "prepend": "ab"}]
    patterns = ["a*", "[ab]", "(?=b)", "b|A", "^", "a(?!b)", "B{1,2}"]
    steps = list[dict[str, Any]]()
    for _ in range(generator.randint(1, 5)):
        kind = generator.random()
        if kind < 0.5:
            steps.append(replacing(text(2) or "a", text(4)))
        else:
            steps.append(
                replacing(generator.choice(patterns), text(3), "Regex") if kind < 0.8 else generator.choice(others)
            )
    return steps


def test_no_text_grows_more_than_the_steps_allow() -> None:
    from tokenizers import Tokenizer

    generator, faults = random.Random(0), list[str]()
    for _ in range(300):
        steps = drawn(generator)
        parts = {
            **sequence(*steps),
            "added_tokens": [],
            "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
        }
        normalizer: Any = Tokenizer.from_str(json.dumps({"version": "1.0", **parts})).normalizer
        bound = growth(steps)
        for _ in range(20):
            text = "".join(generator.choices("abAB ", k=generator.randint(1, 12)))
            made = ""
            with suppress(TokenizerError), naming_tokenizer("panics"):  # for some empty matches at the end of a text
                made = normalizer.normalize_str(text)
            if len(made) > bound * (len(text) + 1):  # a pattern can match before and after the text
                faults.append(f"{steps}: {len(text)} to {len(made)}, more than {bound:g} times")
    assert not faults, "\n".join(faults[:5])


def test_rows_are_refused_by_how_long_they_can_become(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {**BASE, **sequence(replacing("x", "x" * 40), replacing("x", "y" * 40)), "added_tokens": []}
    reference = Reference(json.dumps(parts), keep_control=True)
    short = pa.array(["abc x"] * 3000)
    asked = list[int]()
    batches = engines._batches
    monkeypatch.setattr(
        engines, "_batches", lambda *given: [asked.append(len(each)) or each for each in batches(*given)]
    )
    assert len(reference.ids(short)[1]) == 3001
    assert max(asked) * 5 * 3200 <= 2 << 20  # of about a MiB each, normalized
    for call in (reference.ids, reference.places):
        with pytest.raises(TokenizerError, match=r"can make 64,000,000 characters of a row, more than 4,194,304"):
            call(pa.array(["abc", "x" * 20_000]))
