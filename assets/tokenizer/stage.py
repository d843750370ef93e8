"""tokenizer: the files of the given tokenizer, or of one trained on the prompts of the split `train`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.segments import content_segments
from tokenloom.assets.stage.contract import Contract, column
from tokenloom.assets.stage.definition import (
    FIXED_TEXTS,
    ChunkOutput,
    Context,
    InputChunk,
    Reads,
    Stage,
    Work,
    settings,
)
from tokenloom.assets.stage.names import PROMPTS, TOKENIZERS
from tokenloom.config import PipelineConfig, TrainConfig
from tokenloom.errors import TokenizerError
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.processors.certificate import CERTIFICATE
from tokenloom.resources.store import Run
from tokenloom.resources.tables.ragged import sides
from tokenloom.resources.tables.sequence_schema import check_tokenizer
from tokenloom.resources.tokenizers import (
    CONFIG,
    TEMPLATE,
    TOKENIZER,
    TokenizerSpec,
    declared_tokenizer,
    export_config,
    token_ids,
    vocab_size,
)

if TYPE_CHECKING:
    from tokenloom.resources.store import ArtifactStore, Manifest


CONTRACT = Contract(
    "One file of the tokenizer.",
    {"file": column("Name of the file.", pa.string()), "content": column("Content of the file.", pa.binary())},
    {"holds tokenizer.json and its config": lambda table: {TOKENIZER, CONFIG} <= set(table["file"].to_pylist())},
)


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
    # special tokens get the first ids, in this order, whatever the texts are
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
        raise TokenizerError(f"special_tokens: {taken[0]!r} is also a token of plain text; choose another")
    return written.encode()


def _without(texts: pa.Array, control: Iterable[str]) -> pa.Array:
    for token in control:
        texts = pc.list_flatten(pc.split_pattern(texts, token))
    return texts


class TokenizerStage(Stage):
    name = TOKENIZERS
    description = "The tokenizer: its files, control tokens and vocabulary."
    version = 2
    upstream = (PROMPTS,)
    libraries = ("pyarrow", "tokenizers")
    reads = (settings("tokenizer", "train"), Reads(declared_tokenizer, "later"))
    section = "tokenizer"

    def prepare(self, context: Context) -> Work:
        spec = context.tokenizer
        settings = context.config.tokenizer.train
        side_inputs = {"chat_template": digest_json(spec.chat_template)}
        if (images := spec.images(context.config)) is not None:
            side_inputs["processor"] = digest_bytes(images.to_bytes())
        if settings is None:
            name = context.config.tokenizer.name_or_path or ""
            digest = digest_json(dict(spec.digests))
            if spec.processor is not None:
                digest = digest_json([digest, spec.processor.digest])
            chunk = InputChunk(digest, "all", (Run(Path(name).name),), lambda: spec.files[TOKENIZER])
        else:
            prompts = [chunk for chunk in self.inputs(context) if chunk.split == "train"]

            def trained() -> bytes:
                tables = (table for chunk in prompts for table in sides(chunk.load()).values())
                return train((content_segments(table) for table in tables), settings, spec)

            reads = tuple(place for chunk in prompts for place in chunk.reads)
            digest = digest_json([chunk.digest for chunk in prompts])
            chunk = InputChunk(digest, "all", (Run("trained"),), trained, reads=reads)
        control = {"control": list(spec.control)} if settings is not None else {}
        resolved = {"special_tokens": spec.tokens(), **control}
        return Work([chunk], lambda tokenizer: exported(tokenizer, spec), side_inputs, resolved, lambda: _notes(spec))

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        """Return the digest, the vocabulary size (highest id plus one) and the ids of special tokens.

        Also publishes the files for `from_pretrained`.
        """
        digest = manifest.chunks[0].output
        files = tokenizer_files(context.store, digest)
        context.store.publish_tokenizer(digest, files)
        control = {"control": list(context.tokenizer.control)}
        if context.latest is not None and context.latest.facts.get("digest") == digest:  # saves parsing the tokenizer
            return {**context.latest.facts, **control}
        ids_of_tokens = token_ids(files[TOKENIZER])
        ids = {name: ids_of_tokens.get(token) for name, token in context.tokenizer.tokens().items()}
        return {"digest": digest, "vocab_size": manifest.counters["vocab_size"], "ids": ids, **control}

    def shown(self, config: PipelineConfig, manifest: Manifest, first: pa.Table) -> dict[str, Any]:
        facts = manifest.facts
        return {"vocab_size": facts["vocab_size"], "control_tokens": ", ".join(facts["control"])[:2000]}


STAGE = TokenizerStage()


def tokenizer_files(store: ArtifactStore, digest: str) -> dict[str, bytes]:
    """Return the files in an output of this stage, by name.

    Raises:
        StoreError: it is missing or damaged.
    """
    table = store.objects.get_verified(digest, _check_files)
    return dict(zip(table["file"].to_pylist(), table["content"].to_pylist(), strict=True))


def _check_files(table: pa.Table) -> None:
    check_tokenizer(table)
    if TOKENIZER not in table["file"].to_pylist():
        raise ValueError(f"lacks {TOKENIZER}")


def _notes(spec: TokenizerSpec) -> dict[str, Any]:
    if not spec.lacked:
        return {}
    names, size = ", ".join(spec.lacked), vocab_size(spec.files[TOKENIZER])
    return {"notices": [f"added to the tokenizer: {names}; resize the model's embeddings to {size:,} tokens"]}


def exported(tokenizer: bytes, spec: TokenizerSpec) -> ChunkOutput:
    """Return the files of a tokenizer as the stage stores them."""
    files = {TOKENIZER: tokenizer, CONFIG: export_config(spec)}
    if spec.chat_template:
        files[TEMPLATE] = spec.chat_template.encode()
    if spec.processor is not None:
        files = {**spec.processor.files, **files, CERTIFICATE: spec.processor.tokens.to_bytes()}
    table = pa.table({"file": pa.array(list(files)), "content": pa.array(list(files.values()), pa.binary())})
    return ChunkOutput(table, len(files), counters={"vocab_size": vocab_size(tokenizer)})


SPEC = TokenizerSpec({}, "<s>", "</s>", None, None, ("<|user|>", "</s>", "<s>"), "{{ messages }}", "<s>")


def probe() -> list[pa.Table]:
    return [exported(trained(), SPEC).table]


def trained() -> bytes:
    """Return tokenizer.json of a byte-level BPE."""
    texts = pa.array([*FIXED_TEXTS, *(text.lower() for text in FIXED_TEXTS)], pa.string())
    return train([texts], TrainConfig(vocab_size=320), SPEC)
