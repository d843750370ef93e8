"""Trains a byte-level BPE tokenizer on text; the same text gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tokenloom.config import TrainConfig
from tokenloom.resources.tokenizers import TokenizerSpec


def train(texts: Iterable[Iterable[str]], settings: TrainConfig, spec: TokenizerSpec) -> bytes:
    """tokenizer.json of a byte-level BPE (Sennrich et al., ACL 2016; over bytes as in GPT-2).

    Args:
        texts: batches of strings, without control tokens.
        spec: its control tokens become the first ids: bos, eos, pad and unk, then the others.
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
    tokenizer.train_from_iterator(_batches(texts), trainer)
    if spec.bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[spec.bos, "$A"], special_tokens=[(spec.bos, tokenizer.token_to_id(spec.bos))]
        )
    return tokenizer.to_str(pretty=True).encode()


def _batches(texts: Iterable[Iterable[str]]) -> Iterator[list[str]]:
    for batch in texts:
        yield list(batch)
