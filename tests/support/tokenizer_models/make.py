"""Makes the models and rank files here, and the ids that their own libraries give: `python make.py`.

It needs sentencepiece 0.2.3, tiktoken 0.14.0 and tokenizers; the tests do without the first two.
"""

from __future__ import annotations

import base64
import json
import random
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
CORPUS = """Below is an instruction that describes a task. Write a response that completes the request.
### Instruction: name three primary colours. ### Response: red, blue and yellow
the quick brown fox jumps over the lazy dog; the dog sleeps, the fox runs on and on
user assistant system tool answer question hello world what is the answer to everything
Grüße aus Köln, naïve café, ça va? Привет мир, как дела? 你好世界，今天天气怎么样？ مرحبا بالعالم
0 1 2 3 4 5 6 7 8 9 10 11 12 100 1000 3.14159 (a + b) * c == d; return x[i] {y: 'z'}
def merge(left, right):  return [x for pair in zip(left, right) for x in pair]
A tokenizer cuts text into pieces; each piece has an id; the same text always gives the same ids.
She sells sea shells by the sea shore, and the shells that she sells are sea shells for sure.
abab ababab abcabc aaaa aaaaaa banana bananas ananas xyxyxy mississippi"""
IDENTITY: dict[str, Any] = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
RULES = "FF21\t41\nFF11\t31\nFB01\t66 69\n09\t20\n0A\t20\n3000\t20\n65 301\tE9\nBD\t31 2F 32\n"
SENTENCEPIECE: dict[str, dict[str, Any]] = {
    "bpe": {"model_type": "bpe", "vocab_size": 700, "byte_fallback": True, "split_digits": True, **IDENTITY},
    "symbols": {
        "model_type": "bpe",
        "vocab_size": 700,
        "byte_fallback": True,
        "user_defined_symbols": ["<table>", "▁▁▁", "th"],
        **IDENTITY,
    },
    "unigram": {
        "vocab_size": 300,
        "pad_id": 0,
        "eos_id": 1,
        "unk_id": 2,
        "bos_id": -1,
        "user_defined_symbols": ["<table>"],
    },
    "unigram_bytes": {"vocab_size": 560, "byte_fallback": True, "split_by_whitespace": False, **IDENTITY},
}
ODD = (
    " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "▁", "▁▁", "<table>", "ﬁ", "Ａ", "１", "é", "e\u0301", "\u00a0",
    "\u3000", "🙂", "日", "한국", "ß", "ab", "ababab", "zzzz", "the", " the", "</s>x", "<0x0A>", "<unk>", "ǅ", "\u0000",
    "½", "²",
    "1", "12", "345", "it's", "'S", "WE'LL", "'ſ", "!", "/", "...", "</", "_", "\u0085", "ʰ", "AB", "Ab", "the quick",
)  # fmt: skip


def texts(count: int, seed: int = 1) -> list[str]:
    """Pieces of the corpus among odd characters."""
    draw = random.Random(seed)

    def part() -> str:
        if draw.random() < 0.4:
            at = draw.randrange(len(CORPUS))
            return CORPUS[at : at + draw.randint(1, 25)]
        return (
            draw.choice(ODD)
            if draw.random() < 0.9
            else chr(draw.choice([draw.randrange(0x250), draw.randrange(0x250, 0xD800)]))
        )

    return ["".join(part() for _ in range(draw.randint(0, 14))) for _ in range(count)]


def train_sentencepiece(folder: Path) -> None:
    """Train the four models."""
    trainer = import_module("sentencepiece").SentencePieceTrainer
    (folder / "corpus.txt").write_text("\n".join(CORPUS.split("\n") * 20))
    (folder / "rules.tsv").write_text(RULES)
    for name, settings in SENTENCEPIECE.items():
        if name == "unigram":
            settings = settings | {"normalization_rule_tsv": str(folder / "rules.tsv")}
        if name.startswith("unigram"):
            settings = settings | {"hard_vocab_limit": False}
        trainer.train(
            input=str(folder / "corpus.txt"),
            model_prefix=str(HERE / name),
            num_threads=1,
            character_coverage=0.98,
            minloglevel=2,
            **settings,
        )
        (HERE / f"{name}.vocab").unlink()


def train_ranks() -> None:
    """A vocabulary learned without a split pattern, so that each place where one cuts shows in the ids; and the same
    with tokens that no merges make, in an order in which no trainer finds them."""
    draw = random.Random(5)
    parts = [" ", "  ", "\n", "\r\n", "\t", "1", "12", "a", "B", "it's", "WE'LL", "é", "你", "!", "/", "...", " x", "3"]
    noise = ["".join(draw.choice(parts) for _ in range(60)) for _ in range(150)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS.split("\n") * 8 + noise, trainer)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    bytes_of = {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    trained = [bytes(bytes_of[character] for character in token) for token, _ in vocabulary]
    odd = {bytes(draw.choices(b"ab \n1", k=draw.randint(2, 5))) for _ in range(150)} | {
        b"the quick",
        b"zzzz",
        b"ababab",
    }
    longer = sorted({token for token in [*trained, *odd] if len(token) > 1})
    draw.shuffle(longer)
    shuffled = [bytes([byte]) for byte in range(256)] + longer
    for name, tokens in {"trained": trained, "shuffled": shuffled}.items():
        lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)]
        (HERE / f"{name}.tiktoken").write_bytes(b"".join(lines))


def expected() -> dict[str, Any]:
    """The ids that sentencepiece and tiktoken give, by model, and for ranks by split pattern."""
    sentencepiece, tiktoken = import_module("sentencepiece"), import_module("tiktoken")
    known: Any = import_module("tiktoken_ext.openai_public")
    known.load_tiktoken_bpe = lambda *_, **__: {}
    given = texts(90)
    found: dict[str, Any] = {"texts": given}
    for name in SENTENCEPIECE:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(HERE / f"{name}.model"))
        found[name] = [processor.encode(text) for text in given]
    for name in ("trained", "shuffled"):
        lines = [line.split() for line in (HERE / f"{name}.tiktoken").read_bytes().splitlines()]
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        for encoding in ("r50k_base", "cl100k_base", "o200k_base"):
            pattern = getattr(known, encoding)()["pat_str"]
            encoder = tiktoken.Encoding(encoding, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
            found[f"{name} {encoding}"] = {"pat_str": pattern, "ids": [encoder.encode_ordinary(text) for text in given]}
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        train_sentencepiece(Path(made))
    train_ranks()
    (HERE / "expected.json").write_text(json.dumps(expected(), ensure_ascii=True, separators=(",", ":")) + "\n")
