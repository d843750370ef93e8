"""Pre-tokenized rows: which columns are what, their token ids without padding, and the loss weight of each token.

What is trained comes from at most one source, as the field writes it: `labels` (Hugging Face: not shifted, -100 where
not trained); masks of 0 and 1, several of which are multiplied (TRL); the length of the prompt; or the number of last
tokens that are the answer, whose mask can be as short as they are (SkyRL). Weights of tokens are multiplied with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.source_expressions import RowReader, SourceExpression, numbers_of
from tokenloom.assets.schema.candidates import Profiles
from tokenloom.assets.schema.conventions import LARGEST, conflict, token_columns
from tokenloom.assets.stage.forms import COUNTS, MASKS, TOKENS, TRAINED_BY, Form, allowed_forms
from tokenloom.config import PipelineConfig
from tokenloom.errors import Fault
from tokenloom.resources.tables.json_text import is_json, python_values
from tokenloom.resources.tables.nested_paths import Path, list_values, plain
from tokenloom.resources.tables.ragged import (
    Flags,
    Ints,
    any_of,
    flags_of,
    list_array,
    list_parts,
    offsets_of,
    one_array,
    ranges,
    row_of,
    sum_rows,
)
from tokenloom.resources.tables.sequence_schema import PER_TOKEN

MASKED = -100
"""The label of a token that is not trained."""

MOST_IDS = 1 << 32

Numbers = np.ndarray
"""Integers, booleans or floats [tokens]."""


def tokens_form(read: RowReader) -> dict[str, pa.Array]:
    """Return the columns of the form `tokens`, and of `dataset.token_columns` (whose roles start with `PER_TOKEN`)."""
    rows = _Rows.of(read)
    weights, unpadded = rows.weights(), rows.unpadded()
    values = {role: rows.numbers(role, window=True) for role in read.sources if role.startswith(PER_TOKEN)}
    for role, numbers in values.items():
        rows.report(~np.isfinite(numbers), "not_a_number", role, "{source} has a value that is not a finite number")
    documents = rows.documents(unpadded)
    rows.report_rows(sum_rows(unpadded, rows.offsets) == 0, "no_tokens", "input_ids", "the row has no tokens")
    offsets = offsets_of(sum_rows(unpadded, rows.offsets))
    columns: dict[str, pa.Array] = {
        "input_ids": list_array(offsets, rows.ids[unpadded].astype(np.uint32)),
        "weights": list_array(offsets, weights[unpadded].astype(np.float32)),
        "lengths": documents,
    }
    of_tokens = {role: list_array(offsets, numbers[unpadded].astype(np.float32)) for role, numbers in values.items()}
    return columns | of_tokens


@dataclass
class _Rows:
    """The rows of a chunk, flat.

    Args:
        lists: the lists of each source that has them: a length per row, the flat values, and the rows without a list.
        scalars: float64 [rows], the numbers of each other source, NaN for what is not a number.
        ids: int64 [tokens]; 0 for what is not an id.
        offsets: int64 [rows + 1].
    """

    read: RowReader
    lists: Mapping[str, tuple[Ints, Numbers, Flags]]
    scalars: Mapping[str, Numbers]
    ids: Ints
    offsets: Ints

    @classmethod
    def of(cls, read: RowReader) -> _Rows:
        values = {role: one_array(read.values(role)) for role in read.sources}
        lists = {role: _lists(array) for role, array in values.items() if role not in COUNTS}
        scalars = {role: numbers_of(plain(array)) for role, array in values.items() if role in COUNTS}
        lengths, ids, missing = lists["input_ids"]
        wrong = ~((ids >= 0) & (ids < MOST_IDS) & _whole(ids))
        rows = cls(read, lists, scalars, np.where(wrong, 0, ids).astype(np.int64), offsets_of(lengths))
        message = "{source} is not a list of token ids, integers from 0 on"
        rows.report_rows(missing, "not_token_ids", "input_ids", message)
        rows.report(wrong, "not_token_ids", "input_ids", message, ids)
        return rows

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    @property
    def row(self) -> Ints:
        return row_of(self.lengths)

    @property
    def position(self) -> Ints:
        """The number of tokens of the row before each one."""
        return np.arange(len(self.ids)) - np.repeat(self.offsets[:-1], self.lengths)

    def numbers(self, role: str, window: bool = False) -> Numbers:
        """Return the values of a source for each token, [tokens].

        Args:
            window: whether a list can also have values for the last `num_actions` tokens alone; others then have 0.
        """
        lengths, flat, missing = self.lists[role]
        # SkyRL's masks can be as short as the answer, which is at the end of the row.
        fits = ~missing & (lengths == self.lengths)
        if window and "num_actions" in self.scalars:
            fits |= ~missing & (lengths == self.scalars["num_actions"]) & (lengths <= self.lengths)
        counts = (pa.array(each).cast(pa.string()) for each in (lengths, self.lengths))
        shown = pc.binary_join_element_wise(*counts, "/")
        message = f"{{source}} has not one value for each token of {self.read.sources['input_ids']}"
        self.report_rows(~fits, "unequal_lengths", role, message, shown)
        values = np.zeros(len(self.ids), flat.dtype)
        sizes = np.where(fits, lengths, 0)
        values[ranges(self.offsets[1:] - sizes, sizes)] = flat[ranges(offsets_of(lengths)[:-1], sizes)]
        return values

    def weights(self) -> Numbers:
        """Return the loss weight of each token, float64 [tokens]."""
        weights = np.ones(len(self.ids))
        if "labels" in self.read.sources:
            weights *= self._labelled()
        for role in MASKS:
            if role in self.read.sources:
                weights *= self._mask(role, window=role == "loss_mask") == 1
        if "weights" in self.read.sources:
            given = self.numbers("weights").astype(np.float64)
            wrong = ~((given >= 0) & (given <= LARGEST))
            message = "{source} has a value that is not a number from 0 on"
            self.report(wrong, "invalid_weight", "weights", message, given)
            weights *= np.where(wrong, 0.0, given)
        for role, count in self.scalars.items():
            outside = ~((count >= 0) & (count <= self.lengths) & _whole(count))
            self.report_rows(outside, "invalid_length", role, "{source} is not a number of tokens of the row")
            # Both say where the answer begins: one counted from the start of the row, the other from its end.
            begins = np.where(outside, 0, count if role == "prompt_length" else self.lengths - count)
            weights *= self.position >= begins[self.row]
        return weights

    def _mask(self, role: str, window: bool = False) -> Numbers:
        mask = self.numbers(role, window)
        self.report((mask != 0) & (mask != 1), "not_a_mask", role, "{source} has values other than 0 and 1", mask)
        return mask

    def _labelled(self) -> Flags:
        labels = self.numbers("labels")
        # The last token has no next one: any label is right there for labels of the next token.
        masked, wrong = labels == MASKED, (labels != MASKED) & (labels != self.ids)
        last = np.zeros(len(self.ids), bool)
        last[self.offsets[1:][self.lengths > 0] - 1] = True
        following = np.append(self.ids[1:], -1)
        of_next = masked | (labels == following) | last
        # Labels shifted by one are the most common mistake: say so, instead of naming each wrong label.
        shifted = any_of(wrong, self.lengths) & ~any_of(~of_next, self.lengths) & any_of(~masked & ~last, self.lengths)
        message = "{source} is shifted by one: each label is the next token; write the labels of the tokens themselves"
        self.report_rows(shifted, "shifted_labels", "labels", message)
        message = f"{{source}} has a label that is neither its token nor {MASKED}"
        self.report(wrong & ~np.repeat(shifted, self.lengths), "other_label", "labels", message, labels)
        return ~masked

    def unpadded(self) -> Flags:
        """Return bool [tokens]: which tokens are not padding."""
        if "attention_mask" not in self.read.sources:
            return np.ones(len(self.ids), bool)
        unmasked = self._mask("attention_mask") != 0
        # More than one run of tokens in a row means padding between tokens.
        opens = unmasked & ~np.append(False, unmasked[:-1])[: len(unmasked)]
        opens[self.offsets[:-1][self.lengths > 0]] = unmasked[self.offsets[:-1][self.lengths > 0]]
        message = "{source} masks tokens between others, not only padding at the start and the end"
        self.report_rows(sum_rows(opens, self.offsets) > 1, "inner_padding", "attention_mask", message)
        return unmasked

    def documents(self, kept: Flags) -> pa.Array:
        """Return the number of tokens of each document, list<int32> [rows]; one document where nothing divides a row.

        Args:
            kept: bool [tokens], which tokens are not padding.
        """
        lengths = sum_rows(kept, self.offsets)
        counts, sizes = np.ones(len(lengths), np.int64), lengths
        by_position = None
        if "position_ids" in self.read.sources:
            positions, row = self.numbers("position_ids")[kept], self.row[kept]
            opens = positions == 0
            # The first token of a row must be 0, others 0 or one more than the token before them.
            firsts = np.append(True, row[1:] != row[:-1])[: len(row)]
            wrong = np.where(firsts, ~opens, ~opens & (positions != np.append(0, positions[:-1])[: len(row)] + 1))
            flat = np.zeros(len(self.ids), bool)
            flat[kept] = wrong
            message = "{source} does not count from 0 in each document"
            self.report(flat, "invalid_documents", "position_ids", message, self.numbers("position_ids"))
            opens |= firsts
            counts = np.bincount(row[opens], minlength=len(lengths))
            sizes = np.diff(np.append(np.flatnonzero(opens), len(row)))
            by_position = list_array(offsets_of(counts), sizes.astype(np.int32))
        if "seq_lengths" not in self.read.sources:
            return by_position or list_array(offsets_of(counts), sizes.astype(np.int32))
        counts, sizes, missing = self.lists["seq_lengths"]
        bad = missing | any_of(~((sizes > 0) & (sizes < 1 << 31) & _whole(sizes)), counts)
        bad |= sum_rows(np.where(np.repeat(bad, counts), 0, sizes).astype(np.int64), offsets_of(counts)) != lengths
        message = "{source} does not add up to the tokens of the row"
        self.report_rows(bad, "invalid_documents", "seq_lengths", message)
        by_length = list_array(offsets_of(counts), np.where(np.repeat(bad, counts), 0, sizes).astype(np.int32))
        if by_position is not None:
            message = f"{{source}} and {self.read.sources['position_ids']} divide the row into other documents"
            different = ~flags_of(pc.equal(_as_texts(by_position), _as_texts(by_length)))
            self.report_rows(different, "invalid_documents", "seq_lengths", message)
        return by_length

    def report(self, wrong: Flags, code: str, role: str, message: str, values: Numbers | None = None) -> None:
        """Report rows with a wrong token, bool [tokens], with the first place; `values` are shown there."""
        if not wrong.any():
            return
        places = np.flatnonzero(wrong)
        rows, first = np.unique(self.row[places], return_index=True)
        shown = np.full(len(self.lengths), "", object)
        for row, place in zip(rows.tolist(), places[first].tolist(), strict=True):
            token = f"token {place - int(self.offsets[row])}"
            shown[row] = token if values is None else f"{token}: {values[place]}"
        self.report_rows(any_of(wrong, self.lengths), code, role, message, pa.array(shown, pa.string()))

    def report_rows(self, flags: Flags, code: str, role: str, message: str, shown: pa.Array | None = None) -> None:
        """Report rows, bool [rows]; by default their value is shown."""
        if flags.any():
            problem = message.replace("{source}", str(self.read.sources[role]))
            values = self.read.values(role) if shown is None else shown
            self.read.report(flags, code, role.removeprefix(PER_TOKEN), problem, values)


def _whole(values: Numbers) -> Flags:
    return np.ones(len(values), bool) if values.dtype.kind in "iub" else values == np.floor(values)


def _as_texts(lists: pa.Array) -> pa.Array:
    """Return lists of integers as texts, which compare by value."""
    offsets, values = list_parts(lists)
    return pc.binary_join(list_array(offsets, values.cast(pa.string())), " ")


def _lists(values: pa.Array) -> tuple[Ints, Numbers, Flags]:
    """Return the length of each list [rows], the flat numbers, and which rows have no list of numbers."""
    values = plain(values)
    if is_json(values.type):  # chunks with values of several types
        values = pa.array([value if _is_numbers(value) else None for value in python_values(values)])
    nothing = np.zeros(len(values), np.int64), np.zeros(0, np.int64), np.ones(len(values), bool)
    if not pa.types.is_list(values.type):
        return nothing
    lengths, flat = list_values(values)
    flat, missing = plain(flat), ~flags_of(values.is_valid())
    if pa.types.is_null(flat.type):
        flat = flat.cast(pa.int64())
    if not (pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type) or pa.types.is_boolean(flat.type)):
        return nothing
    if flat.null_count:
        missing |= any_of(flags_of(flat.is_null()), lengths)
        flat = flat.fill_null(pa.scalar(0).cast(flat.type))
    if pa.types.is_boolean(flat.type):
        flat = flat.cast(pa.uint8())
    return lengths, np.asarray(flat.to_numpy(zero_copy_only=False)), missing


def _is_numbers(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, int | float) and abs(item) < 1 << 53 for item in value)


_SHIFTED = "seq_start_id"
"""A column of Megatron-Bridge's packed rows, whose `loss_mask` belongs to the next token."""


def is_tokens(config: PipelineConfig, given: Mapping[str, SourceExpression]) -> bool:
    """Return whether the YAML says that rows are pre-tokenized, by its format type or a mapped role."""
    return allowed_forms(config.prompt_template.format_type) == (TOKENS.name,) or bool(given.keys() & {*TOKENS.roles})


def token_roles(
    config: PipelineConfig, paths: Profiles, given: Mapping[str, SourceExpression]
) -> dict[str, SourceExpression]:
    """Return the source of each role of pre-tokenized rows: those given, then columns by their names.

    If the YAML maps what is trained, no further column decides it.

    Raises:
        ConfigError: no column has token ids.
    """
    named = {role: Path(profile.name) for role, profile in token_columns(paths).items()}
    if {*TRAINED_BY} & {*given}:
        named = {role: path for role, path in named.items() if role not in TRAINED_BY}
    sources = {**named, **given}
    if "input_ids" not in sources:
        columns = ", ".join([profile.name for profile in paths.values() if profile.is_column][:20])
        message = f"no column has token ids; map one, e.g. {{input_ids: …}}; the columns are {columns}"
        raise config.fault("dataset.column_mapping", message)
    return {role: sources[role] for role in TOKENS.roles if role in sources}


def unfit_tokens(
    config: PipelineConfig, paths: Profiles, form: Form, sources: Mapping[str, SourceExpression]
) -> list[Fault]:
    """Return faults of pre-tokenized rows, and of settings that are only for them."""
    if not form.encoded:
        message = f"has no effect: it is for pre-tokenized rows, but these have the form {form.name}; omit it"
        return [*config.fault("dataset.token_columns", message).faults] if config.dataset.token_columns else []
    messages: list[tuple[str, str]] = []
    if config.media is not None:
        messages.append(("tokenizer.processor", "pre-tokenized rows cannot have images; set name_or_path instead"))
    if (against := conflict(sources)) is not None:
        remedy = "map one of them, or list only the columns to keep in dataset.columns"
        messages.append(("dataset.column_mapping", f"{against}; {remedy}"))
    if (_SHIFTED,) in paths and "loss_mask" in sources:
        message = (
            f"{_SHIFTED} says that these are packed rows of Megatron-Bridge, whose loss_mask belongs to the next "
            "token; map another column, or write a mask of the tokens themselves"
        )
        messages.append(("dataset.column_mapping", message))
    not_paths = [(role, source) for role, source in sources.items() if not isinstance(source, Path)]
    messages += [
        (f"dataset.column_mapping.{role}", f"{source} is not a column or a path") for role, source in not_paths
    ]
    return [fault for setting, message in messages for fault in config.fault(setting, message).faults]
