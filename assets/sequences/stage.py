"""sequences: length-managed rows, uncompressed and unpadded: what a loader reads from the memory map.

Columns: `input_ids`; `trained`, 1 where a token is trained; `weights`, how much each token is trained, in chunks that
hold weights other than 0 and 1; `rows` and `document_lengths`, the raw row and the tokens of each document in the
sequence. Pairs have all but `rows` twice, under `chosen_` and `rejected_`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from tokenloom.assets.pairs import LABEL, in_pairs, refuse_packing
from tokenloom.assets.rejects import ROW, no_rejects, reject_rows
from tokenloom.assets.sequences.pack import concat
from tokenloom.assets.sequences.truncate import kept_tokens
from tokenloom.assets.stage import ChunkOutput, Context, Stage, Work
from tokenloom.assets.tokens.stage import IDS, token_weights
from tokenloom.config import LengthConfig, PipelineConfig
from tokenloom.resources.ragged import Ints, list_array, list_parts, offsets_of, sum_rows

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest


def _documents_fill(table: pa.Table) -> bool:
    ids, lengths = list_parts(table["input_ids"]), list_parts(table["document_lengths"])
    return bool((sum_rows(lengths[1].to_numpy(), lengths[0]) == np.diff(ids[0])).all())


def _trained_fits(table: pa.Table) -> bool:
    same = np.array_equal(list_parts(table["input_ids"])[0], list_parts(table["trained"])[0])
    values = list_parts(table["trained"])[1].to_numpy()
    if not same or (values > 1).any():
        return False
    if "weights" not in table.column_names:
        return True
    offsets, weights = list_parts(table["weights"])
    same = np.array_equal(offsets, list_parts(table["trained"])[0])
    return same and bool(((weights.to_numpy() > 0) == values).all())


class SequencesStage(Stage):
    name = "sequences"
    version = 1
    upstream = ("tokens",)
    libraries = ("pyarrow",)
    compressed = False
    output_schema: ClassVar = {
        "input_ids": IDS,
        "trained": (pa.list_(pa.uint8()),),
        "rows": (pa.list_(pa.int32()),),
        "document_lengths": (pa.list_(pa.int32()),),
    }
    optional_columns: ClassVar = {"weights": (pa.list_(pa.float32()),), LABEL: (pa.bool_(),)}
    checks: ClassVar = {"documents fill their sequence": _documents_fill, "trained marks every token": _trained_fits}

    def settings(self, config: PipelineConfig) -> dict[str, Any]:
        length = config.length
        return {"strategy": length.strategy, "packing": length.packing, "max_length": config.tokenizer.max_length}

    def prepare(self, context: Context) -> Work:
        length, longest = context.config.length, context.config.tokenizer.max_length
        refuse_packing(context.config, context.manifest("columns").facts["mapping"]["form"])
        compute = in_pairs(lambda table: to_sequences(table, length, longest))
        return Work(context.input_chunks("tokens"), compute)

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        """What a loader must know: the pad id, the tokenizer, the longest sequence, and whether rows are packed."""
        tokenizer = context.manifest("tokenizer").facts
        ids = tokenizer["ids"]
        return {
            "pad_token_id": ids.get("pad_token", ids.get("eos_token", 0)),
            "tokenizer": tokenizer["digest"],
            "vocab_size": tokenizer["vocab_size"],
            "max_length": context.config.tokenizer.max_length,
            "packed": context.config.length.packing != "none",
        }


STAGE = SequencesStage()


@dataclass(frozen=True)
class Documents:
    """Rows of tokens, flat: ids [tokens], weights float32 [tokens], lengths and raw rows int64 [documents]."""

    ids: np.ndarray
    weights: np.ndarray
    lengths: Ints
    rows: np.ndarray

    def select(self, documents: np.ndarray) -> Documents:
        """The documents where the flags bool [documents] hold."""
        kept = np.repeat(documents, self.lengths)
        return Documents(self.ids[kept], self.weights[kept], self.lengths[documents], self.rows[documents])


def to_sequences(table: pa.Table, length: LengthConfig, max_length: int) -> ChunkOutput:
    """Truncate or drop over-long rows of a chunk of tokens, then pack them if asked to."""
    offsets, ids = list_parts(table["input_ids"])
    whole = Documents(ids.to_numpy(), token_weights(table), np.diff(offsets), table[ROW].to_numpy())
    kept, cut = _shorten(whole, length, max_length)
    filtered = int(len(whole.rows) - len(kept.rows)) if length.strategy == "drop" else 0
    useless = sum_rows(kept.weights > 0, offsets_of(kept.lengths)) == 0
    rejects = no_rejects()
    if useless.any():
        message = f"no trained token is left within max_length {max_length}"
        sizes = [f"{size} tokens" for size in kept.lengths[useless]]
        rejects = reject_rows(kept.rows[useless], "sequences", "answer_cut_off", "input_ids", message, sizes)
        kept = kept.select(~useless)
    out = _packed(kept, max_length) if length.packing == "concat" else _single(kept)
    return ChunkOutput(
        _table(kept, out, ids.type),
        table.num_rows,
        rejects,
        filtered,
        rows_out=len(kept.rows),
        tokens=len(kept.ids),
        counters={"tokens_cut": cut, "sequences": len(out[2])},
    )


def _shorten(documents: Documents, length: LengthConfig, max_length: int) -> tuple[Documents, int]:
    """The documents within max_length, and how many tokens that cost; `concat` cuts between sequences, loses none."""
    if length.strategy == "drop":
        return documents.select(documents.lengths <= max_length), 0
    if length.packing == "concat":
        return documents, 0
    if length.strategy not in ("truncate_right", "truncate_left", "truncate_middle"):
        raise ValueError(f"length strategy {length.strategy} is not available")
    index, lengths = kept_tokens(documents.lengths, max_length, length.strategy)
    cut = len(documents.ids) - len(index)
    return Documents(documents.ids[index], documents.weights[index], lengths, documents.rows), cut


Layout = tuple[np.ndarray, np.ndarray, np.ndarray]
"""int [pieces] documents, int [pieces] tokens, int [sequences] pieces in each."""


def _single(documents: Documents) -> Layout:
    count = len(documents.rows)
    return np.arange(count), documents.lengths, np.ones(count, np.int64)


def _packed(documents: Documents, max_length: int) -> Layout:
    return concat(documents.lengths, max_length)


def _table(documents: Documents, layout: Layout, kind: pa.DataType) -> pa.Table:
    document, pieces, sequences = layout
    of_pieces = offsets_of(sequences)
    offsets = offsets_of(sum_rows(pieces, of_pieces))
    columns = {
        "input_ids": list_array(offsets, pa.array(documents.ids, kind)),
        "trained": list_array(offsets, pa.array((documents.weights > 0).astype(np.uint8))),
        "rows": list_array(of_pieces, pa.array(documents.rows[document], pa.int32())),
        "document_lengths": list_array(of_pieces, pa.array(pieces, pa.int32())),
    }
    if ((documents.weights != 0) & (documents.weights != 1)).any():
        columns["weights"] = list_array(offsets, pa.array(documents.weights))
    return pa.table(columns)
