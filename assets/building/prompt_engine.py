"""Encodes rows on the fly, through the same functions as the stages: whole ones to train on, or prompts to answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import ColumnMapping, resolve
from tokenloom.assets.columns.source import parse_source, paths_of
from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.schema.sketch import merge, sketch
from tokenloom.assets.sequences.stage import in_turn, sequencer
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.pairs import in_pairs
from tokenloom.assets.stage.rejects import ROW, join_rejects, no_rejects
from tokenloom.assets.tokens.encode import ContentEncoder
from tokenloom.assets.tokens.stage import tokenize
from tokenloom.config import Constant, PipelineConfig
from tokenloom.resources.tables.ragged import list_array, list_parts, one_array
from tokenloom.resources.tokenizers import TOKENIZER, resolve_tokenizer

Step = Callable[[pa.Table], ChunkOutput]
Row = Mapping[str, Any]
Conversation = Sequence[Row]


class PromptEngine:
    """Turns tables of raw rows into sequences, as the pipeline that `config` declares would.

    Rows that cannot be used are left out. The columns are those of `heads`, else of the first table that is encoded:
    all later ones are read by them, also in other processes that the engine is sent to.

    Attributes:
        rejects: the rows that the last call left out, with their position (`_row`), `stage`, `code`, `field`,
            `message` and `excerpt`.

    Args:
        heads: tables of raw rows that show which columns there are.

    Raises:
        ConfigError: the config trains a tokenizer: that needs the whole dataset, so build it instead;
            `DataPipeline.get_prompt_engine` does.
    """

    def __init__(self, config: PipelineConfig, heads: Sequence[pa.Table] = ()):
        self.config = config
        self._columns = self._first = merge([sketch(head) for head in heads])
        self.rejects: pa.Table = no_rejects()
        self._tokenizer = resolve_tokenizer(config)
        if not self._tokenizer.files:
            raise config.fault("tokenizer.train", "tokenizer.train: a tokenizer is trained by a build, not on the fly")
        policy = config.tokenizer.control_tokens_in_content
        self._encoder = ContentEncoder(
            self._tokenizer.files[TOKENIZER], self._tokenizer.control, keep_control=policy == "keep"
        )
        self._steps: dict[str, Sequence[Step]] = {}

    def encode(self, table: pa.Table) -> pa.Table:
        """Sequences of the rows of a raw table, with the columns of the sequences stage.

        Few-shot examples that come from no file are drawn from the same table.
        """
        table = _numbered(table)
        if "sequences" not in self._steps:
            self._first = self._first or merge([sketch(table)])
            self._steps["sequences"] = self._training()
        return self._run("sequences", table)

    def prompt_only(self, rows: pa.Table | Sequence[Row] | Sequence[Conversation]) -> pa.Table:
        """Prompts for inference: each row up to where its answer begins, with one BOS and without EOS and labels.

        Chats end with the template's generation prompt; a last message of the assistant is taken off. A prompt is what
        the row's text to train on begins with, or the template is refused. Nothing is cut to `max_length`.

        Args:
            rows: a raw table, or rows as mappings, with or without answers; or conversations, each a sequence of
                messages with `role` and `content`.

        Returns:
            `_row` int32, the row's place among those given; `input_ids` and `attention_mask`, lists, for
            `tokenloom.loaders.collate_prompts`.

        Raises:
            ConfigError: nothing tells where answers begin, or conversations are given to a template of columns.
            TemplateError: the chat template begins answers otherwise than it writes those to train on.
        """
        if isinstance(rows, pa.Table):
            table, spoken = rows, False
        else:
            spoken = bool(rows) and not isinstance(rows[0], Mapping)
            table = pa.table({"messages": list(rows)}) if spoken else pa.Table.from_pylist(list(rows))
        table, name = _numbered(table), "conversations" if spoken else "prompts"
        if name not in self._steps:
            self._steps[name] = self._inference(table, spoken)
        made = self._run(name, table)
        offsets, ids = list_parts(made["input_ids"])
        mask = list_array(offsets, np.ones(len(ids), np.uint8))
        return pa.table({ROW: one_array(made[ROW]), "input_ids": made["input_ids"], "attention_mask": mask})

    @property
    def pad_token_id(self) -> int:
        """The id that fills batches."""
        pad = self._tokenizer.pad or self._tokenizer.eos
        return self._encoder.id_of(pad) if pad else 0

    @property
    def packed(self) -> bool:
        """Whether sequences hold several rows."""
        return self.config.length.packing != "none"

    @property
    def whole_chunks(self) -> bool:
        """Whether what becomes of a row depends on the other rows of its table."""
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
        config = self.config
        mapping = resolve(config, self._first)
        render = renderer(config, mapping.to_json(), self._tokenizer)
        encode = in_turn(render, in_pairs(self._tokens))
        sequence = sequencer(config, mapping.to_json(), encode)

        def tokenized(rows: pa.Table) -> ChunkOutput:
            tokens = encode(rows)
            made = sequence(tokens.table, rows)
            return replace(made, rejects=join_rejects([tokens.rejects, made.rejects]))

        return lambda rows: to_canonical(rows, mapping), tokenized

    def _inference(self, table: pa.Table, spoken: bool) -> Sequence[Step]:
        from tokenloom.assets.prompts.inference import prompt_renderer

        prompt = self.config.prompt_template
        if spoken and (prompt.template or prompt.format_type in ("completion", "text")):
            message = f"prompt_template.format_type: {prompt.format_type} takes rows of columns, not conversations"
            raise self.config.fault("prompt_template.format_type", message)
        mapping = ColumnMapping("messages", {"messages": "messages"}) if spoken else self._prompt_mapping(table)
        read = {"form": "messages"} if spoken else mapping.to_json()
        return (
            lambda rows: to_canonical(rows, mapping, unanswered=True),
            prompt_renderer(self.config, read, self._tokenizer),
            self._tokens,
        )

    def _prompt_mapping(self, table: pa.Table) -> ColumnMapping:
        """The mapping, of rows that may lack the column of the answer."""
        columns = self._columns or merge([sketch(table)])
        config, names = self.config, {column["column"] for column in columns}
        answer = config.prompt_template.label_column if config.prompt_template.template else "completion"
        given = config.dataset.column_mapping.get(answer or "")
        source = given if isinstance(given, str) else answer if config.prompt_template.template else None
        if answer and source and not names >= {path.column for path in paths_of(parse_source(source, names))}:
            mapped = {**config.dataset.column_mapping, answer: Constant(constant="")}
            dataset = config.dataset.model_copy(update={"column_mapping": mapped})
            config = config.model_copy(update={"dataset": dataset})
        return resolve(config, columns)

    def _tokens(self, prompts: pa.Table) -> ChunkOutput:
        policy = self.config.tokenizer.control_tokens_in_content
        return tokenize(prompts, self._encoder, self._tokenizer.control, policy)

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config, "columns": self._columns, "first": self._first}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["config"])
        self._columns, self._first = state["columns"], state["first"]


def with_tokenizer(config: PipelineConfig, folder: str) -> PipelineConfig:
    """The config with the tokenizer of a folder, such as a build trained it."""
    tokenizer = config.tokenizer.model_copy(update={"name_or_path": folder, "train": None})
    return config.model_copy(update={"tokenizer": tokenizer})


def _numbered(table: pa.Table) -> pa.Table:
    return table if ROW in table.column_names else table.append_column(ROW, pa.array(range(table.num_rows), pa.int32()))
