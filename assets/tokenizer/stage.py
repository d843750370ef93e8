"""tokenizer: the files of the given tokenizer, or of one trained on the prompts of the split `train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tokenloom.assets.prompts.segments import content_segments
from tokenloom.assets.stage.definition import ChunkOutput, Context, InputChunk, Stage, Work, read_settings
from tokenloom.assets.tokenizer.train import train
from tokenloom.config import PipelineConfig
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.store import Run
from tokenloom.resources.tables.loaded_chunk import check_tokenizer
from tokenloom.resources.tables.preference_pairs import sides
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


class TokenizerStage(Stage):
    name = "tokenizer"
    version = 2
    upstream = ("prompts",)
    libraries = ("pyarrow", "tokenizers")

    def settings(self, config: PipelineConfig) -> dict[str, Any]:
        return read_settings(config, "tokenizer.train")

    def declared(self, config: PipelineConfig) -> dict[str, Any]:
        return {**self.settings(config), **declared_tokenizer(config)}

    def prepare(self, context: Context) -> Work:
        spec = context.tokenizer
        settings = context.config.tokenizer.train
        side_inputs = {"chat_template": digest_json(spec.chat_template)}
        if settings is None:
            name = context.config.tokenizer.name_or_path or ""
            digest = digest_json({name: digest_bytes(content) for name, content in spec.files.items()})
            chunk = InputChunk(digest, "all", (Run(Path(name).name),), lambda: spec.files[TOKENIZER])
        else:
            prompts = [chunk for chunk in context.input_chunks("prompts") if chunk.split == "train"]

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
        if context.last_facts.get("digest") == digest:  # saves parsing the tokenizer
            return {**context.last_facts, **control}
        known = token_ids(files[TOKENIZER])
        ids = {name: known.get(token) for name, token in context.tokenizer.tokens().items()}
        return {"digest": digest, "vocab_size": manifest.counters["vocab_size"], "ids": ids, **control}


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
    """Return what the build reports about tokens that the tokenizer's files lack."""
    if not spec.lacked:
        return {}
    names, size = ", ".join(spec.lacked), vocab_size(spec.files[TOKENIZER])
    return {"notices": [f"added to the tokenizer: {names}; resize the model's embeddings to {size:,} tokens"]}


def exported(tokenizer: bytes, spec: TokenizerSpec) -> ChunkOutput:
    """Return the files of a tokenizer as the stage stores them."""
    files = {TOKENIZER: tokenizer, CONFIG: export_config(spec)}
    if spec.chat_template:
        files[TEMPLATE] = spec.chat_template.encode()
    table = pa.table({"file": pa.array(list(files)), "content": pa.array(list(files.values()), pa.binary())})
    return ChunkOutput(table, len(files), counters={"vocab_size": vocab_size(tokenizer)})
