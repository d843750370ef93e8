"""Trains a byte-level BPE tokenizer; the same texts give the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.config import TrainConfig
from tokenloom.errors import TokenizerError
from tokenloom.resources.tokenizers import TokenizerSpec


def train(texts: Iterable[pa.Array], settings: TrainConfig, spec: TokenizerSpec) -> bytes:
    """Train a byte-level BPE (Sennrich et al., ACL 2016; over bytes as in GPT-2), and return its tokenizer.json.

    The text of control tokens is removed from the texts, so that no merge builds a control token from plain text.

    Args:
        texts: batches of strings.
        settings: the YAML's `tokenizer.train`.
        spec: its control tokens become the first ids: bos, eos, pad and unk, then the others.

    Raises:
        TokenizerError: a control token has the same spelling as a token of plain text.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    ordered = list(dict.fromkeys([*spec.tokens().values(), *sorted(spec.control)]))
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=settings.min_frequency,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in ordered],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((_without(batch, ordered).to_pylist() for batch in texts), trainer)
    if spec.bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[spec.bos, "$A"], special_tokens=[(spec.bos, tokenizer.token_to_id(spec.bos))]
        )
    written = tokenizer.to_str(pretty=True)
    merged = {"".join(pair) for pair in json.loads(written)["model"]["merges"]} | set(trainer.initial_alphabet)
    if taken := [token for token in ordered if token in merged]:
        message = f"special_tokens: {taken[0]!r} is also a token of plain text; choose another"
        raise TokenizerError(message)
    return written.encode()


def _without(texts: pa.Array, control: Iterable[str]) -> pa.Array:
    """Return the texts, split at control tokens."""
    for token in control:
        texts = pc.list_flatten(pc.split_pattern(texts, token))
    return texts
