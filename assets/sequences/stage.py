"""sequences: rows that fit `max_length`, packed, uncompressed and unpadded; loaders memory-map them. `CONTRACT` lists
the columns; pairs have all but `rows` twice, with the prefixes `chosen_` and `rejected_`.

Counters account for every token: tokens_in + tokens_repeated + tokens_padding = stored tokens + tokens_cut +
tokens_dropped + tokens_rejected + tokens_left_out + tokens_shared; tokens_trained of the stored tokens are trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.prompts.spans import span_lists
from tokenloom.assets.prompts.truncation_order import (
    TruncationOrder,
    check_length_settings,
    length_strategy,
    truncation_order,
)
from tokenloom.assets.sequences.answers import (
    TRAINED_OF,
    of_answers,
    row_lengths,
    unstopped_fraction,
    unstopped_warning,
)
from tokenloom.assets.sequences.lengths import AFTER, BEFORE, count_lengths, fill, shown_lengths
from tokenloom.assets.sequences.packing import to_sequences, with_pair_lengths
from tokenloom.assets.sequences.truncation import Encode, drop_turns, token_count
from tokenloom.assets.stage.contract import Contract, column, with_token_columns
from tokenloom.assets.stage.definition import ChunkOutput, Context, InputChunk, Stage, Work, settings, stage_named
from tokenloom.assets.stage.forms import form_named
from tokenloom.assets.stage.names import COLUMNS, LOADED, PROMPTS, TOKENIZERS, TOKENS
from tokenloom.assets.stage.rejects import ROW, join_rejects
from tokenloom.assets.stage.rows import counted_by_row, in_pairs
from tokenloom.assets.tokens.stage import LazyTokenize
from tokenloom.config import LengthConfig, PipelineConfig
from tokenloom.errors import StoreError
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.blobs.blobs import MEDIA
from tokenloom.resources.store.manifest import TRAINED, WEIGHTED
from tokenloom.resources.store.objects import IMAGES, media_of
from tokenloom.resources.tables import sequence_schema
from tokenloom.resources.tables.ragged import list_array, list_parts, offsets_of, sides, sum_rows
from tokenloom.resources.tables.sequence_schema import LENGTH

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest


def _documents_fill(table: pa.Table) -> bool:
    ids, lengths = list_parts(table["input_ids"]), list_parts(table["document_lengths"])
    return bool((sum_rows(lengths[1].to_numpy(), lengths[0]) == np.diff(ids[0])).all())


def _trained_fits(table: pa.Table) -> bool:
    """Whether `trained` is 0 or 1 for every token, and `weights` positive exactly for trained tokens."""
    offsets, trained = list_parts(table["trained"])
    values = trained.to_numpy()
    if not np.array_equal(list_parts(table["input_ids"])[0], offsets) or (values > 1).any():
        return False
    if "weights" not in table.column_names:
        return True
    weight_offsets, weights = list_parts(table["weights"])
    return np.array_equal(weight_offsets, offsets) and bool(((weights.to_numpy() > 0) == values).all())


_DESCRIPTIONS = {
    sequence_schema.INPUT_IDS: "Token ids, in the smallest unsigned type that fits the vocabulary.",
    sequence_schema.TRAINED: "1 for every trained token, 0 for every masked token.",
    sequence_schema.ROWS: "The raw row of each document in the sequence, as its position within its raw chunk.",
    sequence_schema.DOCUMENT_LENGTHS: "Number of tokens of each document in the sequence.",
    sequence_schema.PADDING: "Number of padding tokens at the end of each document; with length.document_multiple.",
    sequence_schema.WEIGHTS: "Loss weight of each token; only in chunks with weights other than 0 and 1.",
    sequence_schema.POSITIONS: "The position of each document's first token in its text; only with packing: tree.",
    sequence_schema.REACH: "Number of tokens of each document and all that continue it; only with packing: tree.",
    sequence_schema.MEDIA: "The images of the sequence, in the order of their tokens; only with an image processor.",
    sequence_schema.LABEL: "KTO only: whether the answer is desired.",
}

CONTRACT = Contract(
    "One sequence: a row, or several rows packed.",
    {
        **{name: column(_DESCRIPTIONS[name], *types) for name, types in sequence_schema.REQUIRED.items()},
        **{
            name: column(_DESCRIPTIONS[name], *types, required=False)
            for name, types in sequence_schema.OPTIONAL.items()
        },
    },
    {"documents fill their sequence": _documents_fill, "trained marks every token": _trained_fits},
    pairs=True,
)


ROWS, LONGEST = 40, 32


def probe() -> list[pa.Table]:
    number = np.arange(ROWS)
    lengths = np.stack([1 + number * 7 % 23, 1 + number * 5 % 17], axis=1)
    ends = np.cumsum(lengths, axis=1)
    ids = pa.array(np.arange(lengths.sum()) * 31 % 60_000, pa.uint16())
    flat = [np.tile(values, ROWS) for values in ([3, 4], [0, 1], [0.0, 1.0], [False, False])]
    roles, messages, weights, control = flat
    spans = span_lists(np.full(ROWS, 2), (ends - lengths).ravel(), ends.ravel(), roles, messages, weights, control)
    columns = {ROW: pa.array(number, pa.int32()), "input_ids": list_array(offsets_of(ends[:, 1]), ids), "spans": spans}
    tokens, order = pa.table(columns), TruncationOrder((0, -1), columns=True, by_role=False, keep="start")
    smart = to_sequences(tokens, LengthConfig(strategy="smart", packing="best_fit"), LONGEST, order)
    split = to_sequences(tokens, LengthConfig(strategy="split", stride=4), LONGEST)
    joined = to_sequences(tokens, LengthConfig(packing="concat"), LONGEST)
    return [table for output in (smart, split, joined) for table in (output.table, output.rejects)]


STRATEGY = "length.strategy"


class SequencesStage(Stage):
    name = LOADED
    description = "What a model is trained on: tokens cut or packed to max_length, and which of them are trained."
    version = 5
    upstream = (TOKENS,)
    libraries = ("pyarrow", "numpy")
    reads = (
        settings("length", "strategy", "packing"),
        settings("tokenizer", "max_length"),
        settings("length", "stride", "media_budget", "document_multiple", given=True),
        # keys hold the order of truncation that these resolve to
        settings(
            "length", "give_up", "keep", when=lambda config: config.length.strategy in (None, "smart"), where="later"
        ),
        settings("dataset", "keep_columns", given=True, where="later"),
    )
    compressed, loaded, marked = False, True, True
    section = "length"
    remedies: ClassVar = {
        "answer_cut_off": "raise tokenizer.max_length, or set length.strategy to smart, which shortens prompts first, "
        "or to drop_turns for conversations, or for token ids to truncate_left",
        "image_cut": "raise tokenizer.max_length, or set length.strategy: drop_turns",
        "too_many_patches": "raise length.media_budget, or make the images smaller",
        "nothing_trained": "drop such rows with dataset.filters, or give more kinds a weight in train_on; in rows of "
        "token ids, write labels other than -100, a mask of 1 or a weight where a token is trained",
        "too_long": "raise tokenizer.max_length, or set length.strategy: smart, which also shortens the last turn",
    }

    def prepare(self, context: Context) -> Work:
        config, mapping = context.config, context.facts(COLUMNS)["mapping"]
        images = context.tokenizer.images(config)
        if images is not None and config.length.packing != "none" and not images.packs:
            message = f"rows for {images.processor} cannot be packed, because {images.reason}; set packing: none"
            raise config.fault("length.packing", message)
        facts = context.facts(TOKENIZERS)
        pad = pad_of(facts)
        filled = {"pad_token_id": pad} if config.length.document_multiple else {}
        if length_strategy(config, mapping) == "drop_turns":
            policy = config.tokenizer.control_tokens_in_content
            tokenize = LazyTokenize(context.store, facts["digest"], tuple(facts["control"]), policy)
            sequence = sequencer(config, mapping, in_turn(renderer(config, mapping, context.tokenizer), tokenize), pad)
            return Work(_with_columns(context), lambda loaded: sequence(*loaded), settings=filled)
        settings = resolved(config, mapping) | filled
        return Work(self.inputs(context), sequencer(config, mapping, pad_token_id=pad), settings=settings)

    def lengths(self, table: pa.Table) -> pa.Table:
        """Return the number of tokens of each sequence; for pairs, of the longer side."""
        lengths = row_lengths(table)
        kind = pa.uint16() if lengths.max(initial=0) < 1 << 16 else pa.uint32()
        return pa.table({LENGTH: pa.array(lengths, kind)})

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        """Return what loaders need: the pad id, the tokenizer, the longest sequence, whether rows are packed, and
        what a row is."""
        tokenizer, mapping = context.facts(TOKENIZERS), context.facts(COLUMNS)["mapping"]
        multiple = context.config.length.document_multiple
        return {
            "pad_token_id": pad_of(tokenizer),
            "tokenizer": tokenizer["digest"],
            "vocab_size": tokenizer["vocab_size"],
            "max_length": context.config.tokenizer.max_length,
            "packed": context.config.length.packing != "none",
            "kind": form_named(mapping["form"]).batch,
            **({"token_columns": [*names]} if (names := mapping.get("token_columns")) else {}),
            **({"document_multiple": multiple} if multiple else {}),
            **({"images": True} if context.config.media is not None else {}),
            **({"trees": True} if context.config.length.packing == "tree" else {}),
        }

    def contract(self, columns: pa.Schema) -> Contract:
        return with_token_columns(CONTRACT, columns)

    def shown(self, config: PipelineConfig, manifest: Manifest, first: pa.Table) -> dict[str, Any]:
        """Return the first sequences, how much is trained and by which role, how full sequences are, and how long."""
        counters, tokens, longest = manifest.counters, manifest.total("tokens"), manifest.facts["max_length"]
        roles = sorted(name for name in counters if name.startswith(TRAINED_OF) and counters[name])
        packed = counters.get("sequences", 0) < manifest.total("rows_out")
        return {
            **super().shown(config, manifest, first),
            "trained_fraction": counters.get(TRAINED, 0) / tokens if tokens else 0.0,
            "unstopped_fraction": unstopped_fraction(counters),
            "fill": fill(counters, tokens, longest) if packed else None,
            **shown_lengths(counters, longest),
            **{f"trained_tokens/{name.removeprefix(TRAINED_OF)}": counters[name] for name in roles},
            **{name: counters[name] for name in _SHOWN if counters.get(name)},
            "warning": unstopped_warning(config, counters),
        }

    def summary(self, config: PipelineConfig, manifest: Manifest) -> dict[str, Any]:
        counters = manifest.counters
        return {
            "fill": round(fill(counters, manifest.total("tokens"), config.tokenizer.max_length), 6),
            "unstopped_fraction": round(unstopped_fraction(counters), 6),
            "warning": unstopped_warning(config, counters),
        }


STAGE = SequencesStage()

_SHOWN = ("tokens_cut", "tokens_dropped", "tokens_padding", "tokens_shared", "answers_cut")


def pad_of(tokenizer: Mapping[str, Any]) -> int:
    """Return the id that pads, given the facts of the stage `tokenizer`."""
    ids = tokenizer["ids"]
    return ids.get("pad_token", ids.get("eos_token", 0))


def resolved(config: PipelineConfig, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that depend on the form of the rows.

    Args:
        mapping: the resolved column mapping, as JSON.
    """
    strategy = length_strategy(config, mapping)
    order = {"order": truncation_order(config, mapping).to_json()} if strategy == "smart" else {}
    return {STRATEGY: strategy, **order, **({} if form_named(mapping["form"]).trained else {"trained": False})}


def _with_columns(context: Context) -> Iterator[InputChunk]:
    """Yield the chunks of tokens, each with its rows in canonical form; raise StoreError if they are from different
    builds."""
    rows_of = stage_named(PROMPTS).above(context.config)[0]
    columns, prompts, tokens = (context.manifest(stage).chunks for stage in (rows_of, PROMPTS, TOKENS))
    consistent = len(columns) == len(prompts) == len(tokens) and all(
        before.rows_out == after.rows_in
        for stage, next_stage in ((columns, prompts), (prompts, tokens))
        for before, after in zip(stage, next_stage, strict=True)
    )
    if not consistent:
        raise StoreError("sequences: columns, prompts and tokens are from different builds; build the dataset again")
    loaded = zip(context.input_chunks(rows_of), context.input_chunks(TOKENS), prompts, tokens, strict=True)
    for rows, chunk, rendered, tokenized in loaded:
        # rows are rendered again, so what rendered and tokenized them is part of the input
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


def sequencer(
    config: PipelineConfig, mapping: Mapping[str, Any], encode: Encode | None = None, pad_token_id: int = 0
) -> Sequence:
    """Return the function that converts a chunk of tokens to sequences, with the YAML's length settings.

    Args:
        mapping: the resolved column mapping, as JSON.
        encode: renders and tokenizes rows in canonical form, for drop_turns only.
        pad_token_id: pads documents to `length.document_multiple`.

    Raises:
        ConfigError: the length settings do not fit the form of the rows.
    """
    check_length_settings(config, mapping)
    strategy, longest = length_strategy(config, mapping), config.tokenizer.max_length
    length = config.length.model_copy(update={"strategy": strategy})
    order = truncation_order(config, mapping) if strategy == "smart" else None
    trained = form_named(mapping["form"]).trained
    pack = in_pairs(lambda table: to_sequences(table, length, longest, order, trained, pad_token_id))

    def sequence(tokens: pa.Table, columns: pa.Table | None = None) -> ChunkOutput:
        # drop_turns is the only strategy that looks at the rows; the others only need tokens
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
        if MEDIA in packed.table.column_names:
            counters[IMAGES] = len(media_of(packed.table.select([MEDIA])))
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
    # one side alone may have been rejected: counters of answers are those of the pairs that are left
    whole = pack(table.filter(pc.is_in(table[ROW], rows)).combine_chunks()).counters
    counters = {name: count for name, count in packed.counters.items() if not of_answers(name)}
    return replace(packed, counters={**counters, **{name: whole[name] for name in whole if of_answers(name)}})
