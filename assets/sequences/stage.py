"""sequences: rows that fit `max_length`, packed, uncompressed and unpadded; loaders memory-map them.

Columns:

- `input_ids`.
- `trained`: 1 for trained tokens, else 0.
- `weights`: the training weight of each token, only in chunks with weights other than 0 and 1.
- `rows`, `document_lengths`: the raw row and the number of tokens of each document in the sequence.

Pairs have every column except `rows` twice, with the prefixes `chosen_` and `rejected_`.

Counters account for every token: tokens_in + tokens_repeated = stored tokens + tokens_cut + tokens_dropped +
tokens_rejected + tokens_left_out; tokens_trained of the stored tokens are trained. Counters also contain the histograms
of lengths, and whether there are weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.prompts.truncation_order import check_length_settings, length_strategy, truncation_order
from tokenloom.assets.sequences.answers import of_answers
from tokenloom.assets.sequences.documents import row_lengths
from tokenloom.assets.sequences.drop_turns import Encode, drop_turns, token_count
from tokenloom.assets.sequences.fit_and_pack import to_sequences, with_pair_lengths
from tokenloom.assets.sequences.length_histogram import AFTER, BEFORE, count_lengths
from tokenloom.assets.stage.definition import ChunkOutput, Context, InputChunk, Stage, Work, read_settings
from tokenloom.assets.stage.forms import form_named
from tokenloom.assets.stage.pairs import in_pairs
from tokenloom.assets.stage.rejects import ROW, join_rejects
from tokenloom.assets.stage.texts import counted_by_row
from tokenloom.assets.tokens.stage import LazyTokenize
from tokenloom.config import PipelineConfig
from tokenloom.errors import StoreError
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.manifest import TRAINED, WEIGHTED
from tokenloom.resources.tables.preference_pairs import sides
from tokenloom.resources.tables.ragged import list_parts
from tokenloom.resources.tables.sequence_schema import LENGTH

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest


STRATEGY = "length.strategy"


class SequencesStage(Stage):
    name = "sequences"
    version = 4
    upstream = ("tokens",)
    libraries = ("pyarrow", "numpy")
    compressed, loaded = False, True

    def settings(self, config: PipelineConfig) -> dict[str, Any]:
        stride = ("length.stride",) if config.length.stride else ()
        return read_settings(config, STRATEGY, "length.packing", "tokenizer.max_length", *stride)

    def declared(self, config: PipelineConfig) -> dict[str, Any]:
        """Return the settings; `give_up` and `keep`, which keys contain as the truncation order that they resolve to;
        and the columns kept in sidecars."""
        order = ("length.give_up", "length.keep") if config.length.strategy in (None, "smart") else ()
        kept = ("dataset.keep_columns",) if config.dataset.keep_columns else ()
        return {**self.settings(config), **read_settings(config, *order, *kept)}

    def prepare(self, context: Context) -> Work:
        config, mapping = context.config, context.facts("columns")["mapping"]
        if length_strategy(config, mapping) == "drop_turns":
            facts, policy = context.facts("tokenizer"), config.tokenizer.control_tokens_in_content
            tokenize = LazyTokenize(context.store, facts["digest"], tuple(facts["control"]), policy)
            encode = in_turn(renderer(config, mapping, context.tokenizer), tokenize)
            sequence = sequencer(config, mapping, encode)
            return Work(_with_columns(context), lambda loaded: sequence(*loaded))
        return Work(context.input_chunks("tokens"), sequencer(config, mapping), settings=resolved(config, mapping))

    def lengths(self, table: pa.Table) -> pa.Table:
        """Return the number of tokens of each sequence; for pairs, of the longer side."""
        lengths = row_lengths(table)
        kind = pa.uint16() if lengths.max(initial=0) < 1 << 16 else pa.uint32()
        return pa.table({LENGTH: pa.array(lengths, kind)})

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        """Return what loaders need: the pad id, the tokenizer, the longest sequence, whether rows are packed, and
        what a row is."""
        tokenizer = context.facts("tokenizer")
        ids = tokenizer["ids"]
        return {
            "pad_token_id": ids.get("pad_token", ids.get("eos_token", 0)),
            "tokenizer": tokenizer["digest"],
            "vocab_size": tokenizer["vocab_size"],
            "max_length": context.config.tokenizer.max_length,
            "packed": context.config.length.packing != "none",
            "kind": form_named(context.facts("columns")["mapping"]["form"]).batch,
        }


STAGE = SequencesStage()


def resolved(config: PipelineConfig, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that depend on the form of the rows.

    Args:
        mapping: the resolved column mapping, as JSON.
    """
    strategy = length_strategy(config, mapping)
    order = {"order": truncation_order(config, mapping).to_json()} if strategy == "smart" else {}
    trained = {} if form_named(mapping["form"]).trained else {"trained": False}
    return {STRATEGY: strategy, **order, **trained}


def _with_columns(context: Context) -> Iterator[InputChunk]:
    """Yield the chunks of tokens, each with its rows in canonical form.

    The keys of the prompts and tokens of those rows are part of the digest: they cover rows, template and tokenizer.

    Raises:
        StoreError: the stages are from different builds.
    """
    stages = ("columns", "prompts", "tokens")
    columns, prompts, tokens = (context.manifest(stage).chunks for stage in stages)
    consistent = len(columns) == len(prompts) == len(tokens) and all(
        before.rows_out == after.rows_in
        for stage, next_stage in ((columns, prompts), (prompts, tokens))
        for before, after in zip(stage, next_stage, strict=True)
    )
    if not consistent:
        raise StoreError("sequences: columns, prompts and tokens are from different builds; build the dataset again")
    loaded = zip(context.input_chunks("columns"), context.input_chunks("tokens"), prompts, tokens, strict=True)
    for rows, chunk, rendered, tokenized in loaded:
        digest = digest_json([chunk.digest, rendered.key, tokenized.key])
        both = chunk.loading(lambda rows=rows, chunk=chunk: (chunk.load(), rows.load()), digest)
        yield replace(both, reads=(*chunk.reads, *rows.reads))


def in_turn(render: Encode, tokenize: Encode) -> Encode:
    """Return the two as one function; it keeps the rejects of both, but not their counters."""

    def encode(rows: pa.Table) -> ChunkOutput:
        rendered = render(rows)
        tokens = tokenize(rendered.table)
        return replace(tokens, rows_in=rows.num_rows, rejects=join_rejects([rendered.rejects, tokens.rejects]))

    return encode


Sequence = Callable[..., ChunkOutput]
"""Converts a chunk of tokens, and for drop_turns its rows in canonical form, to sequences."""


def sequencer(config: PipelineConfig, mapping: Mapping[str, Any], encode: Encode | None = None) -> Sequence:
    """Return the function that converts a chunk of tokens to sequences, with the YAML's length settings.

    Args:
        mapping: the resolved column mapping, as JSON.
        encode: renders and tokenizes rows in canonical form, for drop_turns only.

    Raises:
        ConfigError: the length settings do not fit the form of the rows.
    """
    check_length_settings(config, mapping)
    strategy, longest = length_strategy(config, mapping), config.tokenizer.max_length
    length = config.length.model_copy(update={"strategy": strategy})
    order = truncation_order(config, mapping) if strategy == "smart" else None
    trained = form_named(mapping["form"]).trained
    pack = in_pairs(lambda table: to_sequences(table, length, longest, order, trained))

    def sequence(tokens: pa.Table, columns: pa.Table | None = None) -> ChunkOutput:
        dropped = ChunkOutput(tokens, tokens.num_rows)
        if strategy == "drop_turns" and encode is not None and columns is not None:
            dropped = drop_turns(columns, tokens, encode, longest)
        packed = in_pairs_counted(pack, with_pair_lengths(dropped.table) if order else dropped.table)
        counters = {name: count + dropped.counters.get(name, 0) for name, count in packed.counters.items()}
        counters = {**dropped.counters, **counters, "tokens_in": token_count(tokens)}
        counters |= count_lengths(BEFORE, tokens, longest) | count_lengths(AFTER, packed.table, longest)
        counters[WEIGHTED] = int(any(name.endswith("weights") for name in packed.table.column_names))
        flags = [list_parts(side["trained"])[1].to_numpy() for side in sides(packed.table).values()]
        counters[TRAINED] = sum(map(int, map(np.count_nonzero, flags)))
        rejects = join_rejects([dropped.rejects, packed.rejects])
        packed = replace(packed, rows_in=tokens.num_rows, rejects=rejects, counters=counters, engine=dropped.engine)
        return counted_by_row(packed, tokens)

    return sequence


def in_pairs_counted(pack: Callable[[pa.Table], ChunkOutput], table: pa.Table) -> ChunkOutput:
    """Return `pack(table)`, with counters of answers; pairs with only one side among the sequences are not counted."""
    packed = pack(table)
    if len(sides(table)) == 1 or packed.table.num_rows == table.num_rows:
        return packed
    rows = list_parts(packed.table["rows"])[1]
    whole = pack(table.filter(pc.is_in(table[ROW], rows)).combine_chunks()).counters
    counters = {name: count for name, count in packed.counters.items() if not of_answers(name)}
    return replace(packed, counters={**counters, **{name: whole[name] for name in whole if of_answers(name)}})
