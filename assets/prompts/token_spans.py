"""Renders pre-tokenized rows: their documents as they are, with spans in tokens made from the weights of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.assets.prompts.spans import SPAN_ROLES, SPANS, span_lists, spans_cover
from tokenloom.assets.prompts.truncation_order import check_length_settings
from tokenloom.assets.stage.contract import Contract, column, row_column
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.resources.tables.ragged import Flags, Ints, list_array, list_parts, one_array, row_of
from tokenloom.resources.tables.sequence_schema import PER_TOKEN

_TEXT, _INPUT, _ANSWER = (SPAN_ROLES.index(role) for role in ("text", "input", "answer"))


def spans_cover_ids(table: pa.Table) -> bool:
    """Return whether the spans of each document partition its tokens."""
    return spans_cover(table["spans"], np.diff(list_parts(table["input_ids"])[0]))


CONTRACT = Contract(
    "One document of a pre-tokenized row. Further columns hold a number per token.",
    {
        ROW: row_column(),
        "input_ids": column("The token ids, as the data has them.", pa.list_(pa.uint32())),
        "spans": column("Spans in tokens that partition the document: runs of one loss weight.", SPANS),
    },
    {"spans partition the tokens": spans_cover_ids},
    open=True,
)


def check_token_settings(config: PipelineConfig, mapping: Mapping[str, Any]) -> None:
    """Check that no setting is for texts.

    Raises:
        ConfigError: one has no effect on pre-tokenized rows.
    """
    prompt, fields = config.prompt_template, type(config.prompt_template).model_fields
    for name in sorted(prompt.model_fields_set - {"format_type"}):
        if getattr(prompt, name) != fields[name].default or name in ("add_bos", "add_eos"):
            message = "has no effect: the rows are token ids already, which nothing is added to; omit it"
            raise config.fault(f"prompt_template.{name}", message)
    if config.tokenizer.train is not None:
        message = "the rows are token ids already; set name_or_path to the tokenizer that they come from"
        raise config.fault("tokenizer.train", message)
    for section in ("dedup", "decontaminate"):
        if getattr(config, section) is not None:
            raise config.fault(section, "compares texts, but the rows are token ids; omit it")
    check_length_settings(config, mapping)


def token_documents(table: pa.Table) -> ChunkOutput:
    """Return the documents of pre-tokenized rows; a packed row has several.

    Args:
        table: rows in the form `tokens`.
    """
    counts, lengths = list_parts(table["lengths"])
    offsets = np.append(0, np.cumsum(lengths.to_numpy().astype(np.int64)))
    weights = list_parts(table["weights"])[1].to_numpy()
    columns = {
        ROW: one_array(table[ROW]).take(pa.array(row_of(np.diff(counts)))),
        "input_ids": list_array(offsets, list_parts(table["input_ids"])[1]),
        "spans": token_spans(offsets, weights, np.zeros(len(weights), bool)),
    }
    of_tokens = [name for name in table.column_names if name.startswith(PER_TOKEN)]
    columns |= {name: list_array(offsets, list_parts(table[name])[1]) for name in of_tokens}
    return ChunkOutput(pa.table(columns), table.num_rows, rows_out=table.num_rows)


def token_spans(offsets: Ints, weights: np.ndarray, control: Flags) -> pa.Array:
    """Return the spans of documents: runs of tokens of one weight and one kind.

    The role of trained tokens is `answer`, that of masked ones `input`; in documents without masked tokens all are
    `text`. Each run of trained, or of masked, tokens has its number as its message; control tokens have none.

    Args:
        offsets: int64 [documents + 1], at least one token each.
        weights: float32 [tokens].
        control: bool [tokens], which are control tokens.
    """
    trained, document = weights > 0, row_of(np.diff(offsets))
    firsts = np.zeros(len(weights), bool)
    firsts[offsets[:-1]] = True
    changes = _changes(trained) | firsts
    opens = changes | _changes(weights) | _changes(control)
    start = np.flatnonzero(opens)
    end = np.append(start[1:], len(weights))[: len(start)]
    number = np.cumsum(changes)
    masked = np.bincount(document, ~trained, len(offsets) - 1) > 0
    role = np.where(trained[start], np.where(masked[document[start]], _ANSWER, _TEXT), _INPUT)
    return span_lists(
        np.bincount(document[start], minlength=len(offsets) - 1),
        start - offsets[document[start]],
        end - offsets[document[start]],
        role,
        np.where(control[start], -1, number[start] - number[offsets[document[start]]]),
        weights[start],
        control[start],
    )


def _changes(values: np.ndarray) -> Flags:
    """Return which values differ from the one before."""
    return np.append(False, values[1:] != values[:-1])[: len(values)]
