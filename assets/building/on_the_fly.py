"""Encodes rows on the fly with the functions of the stages: whole rows for training, or prompts for inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import WEIGHT, ColumnMapping, check_kept_columns, resolve
from tokenloom.assets.columns.source_expressions import parse_source, paths_of
from tokenloom.assets.prompts.render import trained_renderer
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import sketch
from tokenloom.assets.sequences.shown import Gaps, dropped_tokens
from tokenloom.assets.sequences.stage import STAGE, in_turn, resolved, sequencer
from tokenloom.assets.sidecars.stage import kept_columns
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW, join_rejects, no_rejects
from tokenloom.assets.stage.rows import in_pairs
from tokenloom.assets.tokens.encode import ContentEncoder
from tokenloom.assets.tokens.stage import tokenize
from tokenloom.config import Constant, PipelineConfig
from tokenloom.resources.tables.json_text import rows_table
from tokenloom.resources.tables.nested_paths import parse_path
from tokenloom.resources.tables.ragged import list_array, list_parts, one_array
from tokenloom.resources.templates.from_yaml import columns_used
from tokenloom.resources.tokenizers import TOKENIZER, resolve_tokenizer

Step = Callable[[pa.Table], ChunkOutput]
Row = Mapping[str, Any]
Conversation = Sequence[Row]


class PromptEngine:
    """Turns tables of raw rows into sequences, as a build of `config` would.

    Rejected rows are omitted. Columns are mapped by `heads`, else by the first table encoded; all later tables use
    the same mapping, also in other processes that receive the engine.

    Attributes:
        rejects: rows that the last call rejected, with their position (`_row`), `stage`, `code`, `field`, `message`
            and `excerpt`.
        tokenizer: the resolved tokenizer.

    Args:
        heads: tables of raw rows with the columns of the dataset.

    Raises:
        ConfigError: rows can have images, or the config trains a tokenizer, which needs the whole dataset.
            `DataPipeline.get_prompt_engine` builds it first.
    """

    reads_json = True
    """Whether `encode` takes the lists and objects of rows as JSON columns, which hold them unchanged."""

    takes_images = False
    """Whether rows can have images."""

    def __init__(self, config: PipelineConfig, heads: Sequence[pa.Table] = ()):
        if config.media is not None and not self.takes_images:
            raise config.fault("tokenizer.processor", "rows with images are not encoded on the fly; build the dataset")
        self.config = config
        self._columns = self._first = merge([sketch(head) for head in heads])
        self.rejects: pa.Table = no_rejects()
        self.tokenizer = resolve_tokenizer(config)
        if not self.tokenizer.files:
            raise config.fault("tokenizer.train", "needs a build; a tokenizer cannot be trained on the fly")
        keep = config.tokenizer.control_tokens_in_content == "keep"
        self._encoder = ContentEncoder(self.tokenizer.files[TOKENIZER], self.tokenizer.control, keep)
        self._uncut: list[pa.Table] = []
        self._steps: dict[str, Sequence[Step]] = {}

    def encode(self, table: pa.Table) -> pa.Table:
        """Return the sequences of a raw table, with the columns of the sequences stage.

        Few-shot examples are drawn from the same table unless `few_shot.source` names a file.
        """
        return self._encode(table)[0]

    def encode_with_gaps(self, table: pa.Table) -> tuple[pa.Table, Gaps]:
        """Return the sequences of a raw table, and where their rows were cut."""
        sequences, tokens = self._encode(table)
        mapping = resolve(self.config, self._first).to_json()
        settings = {**STAGE.read(self.config, "keys"), **resolved(self.config, mapping)}
        return sequences, dropped_tokens(tokens, sequences, settings)

    def _encode(self, table: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return the sequences of a raw table, and its tokens before anything is cut."""
        table = _numbered(table)
        if "sequences" not in self._steps:
            self._first = self._first or merge([sketch(table)])
            self._steps["sequences"] = self._training()
        sequences = self._run("sequences", table)
        return sequences, self._uncut.pop()

    def prompt_only(self, rows: pa.Table | Sequence[Row] | Sequence[Conversation]) -> pa.Table:
        """Return prompts for inference: each row up to the start of its answer, with one BOS, without EOS and labels.

        Chats end with the template's generation prompt; a final assistant message is removed. A prompt is always a
        prefix of the text that the row is trained on. Nothing is truncated to `max_length`.

        Args:
            rows: a raw table; or rows as mappings, with or without answers; or conversations, each a sequence of
                messages with `role` and `content`.

        Returns:
            Table for `tokenloom.loaders.collate_prompts`: `_row` int32, the position in `rows`; `input_ids` and
            `attention_mask`, lists.

        Raises:
            ConfigError: the start of answers is not defined, or conversations are given to a template of columns.
            TemplateError: the chat template's generation prompt is not how it starts answers in training.
        """
        if isinstance(rows, pa.Table):
            table, is_chat = rows, False
        else:
            is_chat = bool(rows) and not isinstance(rows[0], Mapping)
            table = rows_table([{"messages": list(row)} for row in rows] if is_chat else cast(Sequence[Row], rows))
        table, name = _numbered(table), "conversations" if is_chat else "prompts"
        if name not in self._steps:
            self._steps[name] = self._inference(table, is_chat)
        prompts = self._run(name, table)
        offsets, ids = list_parts(prompts["input_ids"])
        mask = list_array(offsets, np.ones(len(ids), np.uint8))
        return pa.table({ROW: one_array(prompts[ROW]), "input_ids": prompts["input_ids"], "attention_mask": mask})

    def kept_columns(self, table: pa.Table) -> pa.Table:
        """Return the columns of `dataset.keep_columns` of a raw table, as the sidecars of a build have them."""
        self._first = self._first or merge([sketch(table)])
        names, known = self.config.dataset.keep_columns, [column["column"] for column in self._first]
        return kept_columns(_numbered(table), names, [parse_path(name, known) for name in names])

    @property
    def pad_token_id(self) -> int:
        """Token id that pads batches."""
        pad = self.tokenizer.pad or self.tokenizer.eos
        return self._encoder.id_of(pad) if pad else 0

    @property
    def packed(self) -> bool:
        """Whether a sequence can have several rows."""
        return self.config.length.packing != "none"

    @property
    def whole_chunks(self) -> bool:
        """Whether a row's sequence depends on the other rows of its table."""
        few_shot = self.config.prompt_template.few_shot
        return self.packed or (bool(few_shot.count) and few_shot.source is None)

    def _run(self, name: str, table: pa.Table) -> pa.Table:
        rejects = []
        for step in self._steps[name]:
            output = step(table)
            rejects.append(output.rejects)
            table = output.table
        self.rejects = join_rejects(rejects)
        return table

    def _training(self) -> Sequence[Step]:
        """Return the functions from raw rows to sequences, the first of which gives canonical rows."""
        config = self.config
        check_kept_columns(config, self._first)
        mapping = resolve(config, self._first)
        encode = in_turn(trained_renderer(config, mapping.to_json(), self.tokenizer), in_pairs(self._tokens))
        sequence = sequencer(config, mapping.to_json(), encode, self.pad_token_id)

        def tokenized(rows: pa.Table) -> ChunkOutput:
            tokens = encode(rows)
            sequences = sequence(tokens.table, rows)
            self._uncut = [tokens.table]
            return replace(sequences, rejects=join_rejects([tokens.rejects, sequences.rejects]))

        return lambda rows: to_canonical(rows, mapping), tokenized

    def _inference(self, table: pa.Table, is_chat: bool) -> Sequence[Step]:
        """Return the functions from raw rows, or conversations, to canonical rows, to prompts, and to tokens."""
        from tokenloom.assets.prompts.inference import prompt_renderer

        prompt = self.config.prompt_template
        if is_chat and (prompt.template or prompt.format_type in ("completion", "text")):
            message = f"{prompt.format_type} takes rows of columns, not conversations"
            raise self.config.fault("prompt_template.format_type", message)
        mapping = ColumnMapping("messages", {"messages": "messages"}) if is_chat else self._prompt_mapping(table)
        render = prompt_renderer(self.config, {"form": "messages"} if is_chat else mapping.to_json(), self.tokenizer)
        return lambda rows: to_canonical(rows, mapping, unanswered=True), render, self._tokens

    def _prompt_mapping(self, table: pa.Table) -> ColumnMapping:
        """Return the mapping of rows that can lack the columns of the answer."""
        columns = self._columns or merge([sketch(table)])
        config, names = self.config, {column["column"] for column in columns}
        prompt = config.prompt_template
        # columns of the answer that the rows lack become empty constants, so that the mapping resolves
        for answer in prompt.trained_columns if prompt.template else ("completion",):
            given = config.dataset.column_mapping.get(answer)
            source = given if isinstance(given, str) else answer if prompt.template else None
            if source and not names >= {path.column for path in paths_of(parse_source(source, names))}:
                mapped = {**config.dataset.column_mapping, answer: Constant(constant="")}
                dataset = config.dataset.model_copy(update={"column_mapping": mapped})
                config = config.model_copy(update={"dataset": dataset})
        if WEIGHT in config.dataset.column_mapping and not (prompt.template and WEIGHT in columns_used(config, names)):
            unweighted = {role: text for role, text in config.dataset.column_mapping.items() if role != WEIGHT}
            dataset = config.dataset.model_copy(update={"column_mapping": unweighted})
            config = config.model_copy(update={"dataset": dataset})
        return resolve(config, columns)

    def _tokens(self, prompts: pa.Table) -> ChunkOutput:
        return tokenize(prompts, self._encoder, self.tokenizer.control, self.config.tokenizer.control_tokens_in_content)

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config, "columns": self._columns, "first": self._first}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["config"])
        self._columns, self._first = state["columns"], state["first"]


def with_tokenizer(config: PipelineConfig, folder: str) -> PipelineConfig:
    """Return the config with the tokenizer in a folder, such as one that a build trained."""
    tokenizer = config.tokenizer.model_copy(update={"name_or_path": folder, "train": None})
    return config.model_copy(update={"tokenizer": tokenizer})


def _numbered(table: pa.Table) -> pa.Table:
    return table if ROW in table.column_names else table.append_column(ROW, pa.array(range(table.num_rows), pa.int32()))
