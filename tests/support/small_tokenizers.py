"""Small byte-level tokenizers trained on a few lines, and the types of the fixtures that write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTROL = (
    "<s>",
    "</s>",
    "<|pad|>",
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
)


CORPUS = (
    "Below is an instruction that describes a task. Write a response that completes the request.",
    "### Instruction: name three primary colours. ### Response: red, blue and yellow",
    "the quick brown fox jumps over the lazy dog; the dog sleeps, the fox runs on and on",
    "user assistant system tool answer question hello world what is the answer to everything",
    "Grüße aus Köln, naïve café, ça va? Привет мир, как дела? 你好世界，今天天气怎么样？ مرحبا بالعالم",
    "0 1 2 3 4 5 6 7 8 9 10 11 12 100 1000 3.14159 (a + b) * c == d; return x[i] {y: 'z'}",
)


WriteConfig = Callable[..., Path]


SaveTokenizer = Callable[..., Path]


def byte_level(control: Iterable[str] = CONTROL, vocab_size: int = 500) -> Tokenizer:
    """A byte-level BPE without a normalizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in control]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer
