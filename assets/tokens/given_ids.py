"""Takes the ids of pre-tokenized rows: checked against the tokenizer, with control tokens marked in their spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.spans import flat_spans
from tokenloom.assets.prompts.token_spans import token_spans
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW, no_rejects, reject_rows
from tokenloom.assets.stage.rows import count_rows
from tokenloom.errors import StoreError
from tokenloom.resources.tables.ragged import list_array, list_parts, one_array, row_of
from tokenloom.resources.tokenizers import naming_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenizers import Tokenizer

    from tokenloom.assets.tokens.encode import ContentEncoder
    from tokenloom.resources.store import ArtifactStore, Manifest

TEXTS, UNENDED = "trained_texts", "trained_texts_without_stop"
"""Counters: runs of trained tokens, and those without a control token among their last `STOP_TOKENS`."""

SEEN, DIFFERENT = "documents_compared", "documents_retokenized"
"""Counters: documents whose decoded text was tokenized again, and those that this gave other ids."""

COMPARED, LONGEST_COMPARED, SHOWN = 32, 1 << 20, 3
"""Documents of each chunk whose text is tokenized again, most tokens of one, and places that a notice lists."""

STOP_TOKENS = 3
"""Most tokens that a stop ends within: a template can write a line break after it."""


def given_ids(table: pa.Table, encoder: ContentEncoder, control: tuple[str, ...]) -> ChunkOutput:
    """Return the tokens of documents that are ids already; rows with an id that the tokenizer lacks are rejected."""
    rows_in = count_rows(table)
    table, rejects = _in_vocabulary(table, encoder)
    offsets, ids = list_parts(table["input_ids"])
    spans = flat_spans(table["spans"])
    weights = np.repeat(spans.weight, spans.end - spans.start)
    is_control = np.zeros(encoder.vocab_size, bool)
    is_control[[encoder.id_of(token) for token in control]] = True
    at = is_control[ids.to_numpy()]
    width = pa.uint16() if encoder.vocab_size <= 1 << 16 else pa.uint32()
    columns = {
        ROW: one_array(table[ROW]),
        "input_ids": list_array(offsets, ids.cast(width)),
        "spans": token_spans(offsets, weights, at),
    }
    columns |= {name: one_array(table[name]) for name in table.column_names if name not in columns}
    out = pa.table(columns)
    counters = _count_stops(offsets, weights > 0, at)
    counters |= {SEEN: len(_compared(out)), DIFFERENT: len(_retokenized(out, encoder.tokenizer))}
    return ChunkOutput(out, rows_in, rejects, 0, count_rows(out), len(ids), counters)


def _in_vocabulary(table: pa.Table, encoder: ContentEncoder) -> tuple[pa.Table, pa.Table]:
    """Return the rows whose ids the tokenizer all has, and rejects for the others, with the first unknown id."""
    offsets, ids = list_parts(table["input_ids"])
    values = ids.to_numpy()
    known = np.append(encoder.known, False)
    unknown = ~known[np.minimum(values, len(known) - 1)]
    if not unknown.any():
        return table, no_rejects()
    rows, places = table[ROW].to_numpy(), np.flatnonzero(unknown)
    document = row_of(np.diff(offsets))[places]
    bad, first = np.unique(rows[document], return_index=True)
    shown = [
        f"token {place - int(offsets[number])}: {values[place]}"
        for place, number in zip(places[first].tolist(), document[first].tolist(), strict=True)
    ]
    message = f"an id is not in the tokenizer, whose largest is {encoder.vocab_size - 1:,}"
    rejects = reject_rows(bad, "tokens", "unknown_id", "input_ids", message, shown)
    return table.filter(pa.array(~np.isin(rows, bad))).combine_chunks(), rejects


def _count_stops(offsets: np.ndarray, trained: np.ndarray, control: np.ndarray) -> dict[str, int]:
    """Count the runs of trained tokens, and those that no control token ends."""
    inner = np.ones(len(trained) + 1, bool)
    inner[offsets] = False
    before = np.append(False, trained) & inner
    after = np.append(trained, False) & inner
    starts = np.flatnonzero(np.append(trained, False) & ~before)
    ends = np.flatnonzero(np.append(False, trained) & ~after)
    so_far = np.append(0, np.cumsum(control))
    stopped = so_far[ends] > so_far[np.maximum(starts, ends - STOP_TOKENS)]
    return {TEXTS: len(starts), UNENDED: int((~stopped).sum())}


def _compared(table: pa.Table) -> list[int]:
    """Return the places of the first `COMPARED` documents, without those that are too long to be compared."""
    lengths = pc.list_value_length(table["input_ids"].slice(0, COMPARED)).to_numpy()
    return np.flatnonzero(lengths <= LONGEST_COMPARED).tolist()


def _retokenized(table: pa.Table, tokenizer: Tokenizer) -> list[int]:
    """Return which of the documents that are compared have other ids if their decoded text is tokenized."""
    places = _compared(table)
    ids = table["input_ids"].take(pa.array(places, pa.int64())).to_pylist()
    with naming_tokenizer("cannot tokenize its own text"):
        texts = tokenizer.decode_batch(ids, skip_special_tokens=False)
        again = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [at for at, own, other in zip(places, ids, again, strict=True) if own != other.ids]


def given_notices(manifest: Manifest, store: ArtifactStore, tokenizer: Callable[[], bytes]) -> list[str]:
    """Return what a build says of pre-tokenized rows: answers without a stop, and texts that give other ids.

    Args:
        manifest: that of the stage tokens.
        tokenizer: returns the content of tokenizer.json.
    """
    counters, notices = manifest.counters, list[str]()
    if counters.get(UNENDED):
        notices.append(
            f"{counters[UNENDED]:,} of {counters[TEXTS]:,} runs of trained tokens do not end with a control token, "
            "such as EOS, so that the model does not learn to stop there"
        )
    if counters.get(DIFFERENT):
        notices.append(
            f"tokenizing the decoded text again gives other ids in {counters[DIFFERENT]:,} of {counters[SEEN]:,} "
            f"documents compared (the first {COMPARED} of each chunk){_places(manifest, store, tokenizer)}; the ids of "
            "the data are kept"
        )
    return notices


def _places(manifest: Manifest, store: ArtifactStore, tokenizer: Callable[[], bytes]) -> str:
    """Return the places of the first documents whose ids differ; "" if the tokens are not stored anymore."""
    from tokenizers import Tokenizer

    chunk = next((chunk for chunk in manifest.chunks if (chunk.counters or {}).get(DIFFERENT)), None)
    try:
        table = store.objects.get(chunk.output) if chunk is not None else pa.table({})
    except StoreError:
        return ""
    if chunk is None:
        return ""
    found = _retokenized(table, Tokenizer.from_buffer(tokenizer()))[:SHOWN]
    return ", such as " + ", ".join(chunk.place(table[ROW][at].as_py()) for at in found)
