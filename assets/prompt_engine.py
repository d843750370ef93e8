"""Encodes rows on the fly, through the same functions as the stages: raw columns in, sequences out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import resolve
from tokenloom.assets.pairs import in_pairs
from tokenloom.assets.prompts.stage import renderer
from tokenloom.assets.rejects import ROW, join_rejects
from tokenloom.assets.schema.sketch import merge, sketch
from tokenloom.assets.sequences.stage import in_turn, sequencer
from tokenloom.assets.stage import ChunkOutput
from tokenloom.assets.tokens.encode import ContentEncoder
from tokenloom.assets.tokens.stage import tokenize
from tokenloom.config import PipelineConfig
from tokenloom.resources.tokenizers import TOKENIZER, resolve_tokenizer


class PromptEngine:
    """Turns tables of raw rows into sequences, as the pipeline that `config` declares would.

    Rows that cannot be used are left out and kept in `rejects`.

    Args:
        heads: tables of raw rows that show which columns there are; default: the first one encoded.

    Raises:
        ConfigError: the config trains a tokenizer: that needs the whole dataset, so build it instead.
    """

    def __init__(self, config: PipelineConfig, heads: Sequence[pa.Table] = ()):
        self.config = config
        self._columns = merge([sketch(head) for head in heads])
        self.rejects: pa.Table = join_rejects([])
        self._tokenizer = resolve_tokenizer(config)
        if not self._tokenizer.files:
            raise config.fault("tokenizer.train", "tokenizer.train: a tokenizer is trained by a build, not on the fly")
        policy = config.tokenizer.control_tokens_in_content
        self._encoder = ContentEncoder(
            self._tokenizer.files[TOKENIZER], self._tokenizer.control, keep_control=policy == "keep"
        )
        self._steps: Sequence[Callable[[pa.Table], ChunkOutput]] | None = None

    def encode(self, table: pa.Table) -> pa.Table:
        """Sequences of the rows of a raw table, with the columns of the sequences stage."""
        if ROW not in table.column_names:
            table = table.append_column(ROW, pa.array(range(table.num_rows), pa.int32()))
        if self._steps is None:
            self._steps = self._prepare(table)
        for step in self._steps:
            output = step(table)
            self.rejects = join_rejects([self.rejects, output.rejects])
            table = output.table
        return table

    @property
    def pad_token_id(self) -> int:
        """The id that fills batches."""
        pad = self._tokenizer.pad or self._tokenizer.eos
        return self._encoder.id_of(pad) if pad else 0

    def _prepare(self, table: pa.Table) -> Sequence[Callable[[pa.Table], ChunkOutput]]:
        config, spec = self.config, self._tokenizer
        mapping = resolve(config, self._columns or merge([sketch(table)]))
        render = renderer(config, mapping.to_json(), spec)
        policy = config.tokenizer.control_tokens_in_content
        encode = in_turn(render, in_pairs(lambda prompts: tokenize(prompts, self._encoder, spec.control, policy)))
        sequence = sequencer(config, mapping.to_json(), encode)

        def tokenized(rows: pa.Table) -> ChunkOutput:
            tokens = encode(rows)
            made = sequence(tokens.table, rows)
            return replace(made, rejects=join_rejects([tokens.rejects, made.rejects]))

        return lambda rows: to_canonical(rows, mapping), tokenized

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config, "columns": self._columns}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["config"])
        self._columns = state["columns"]
