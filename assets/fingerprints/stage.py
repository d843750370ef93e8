"""fingerprints: of each row, hashes that the same and similar rows share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.row_texts import (
    OF_PROMPTS,
    OWN,
    PROMPT,
    Calls,
    Texts,
    beside_texts,
    calls_of,
    has_sides,
    message_fields,
    row_texts,
    text_blocks,
)
from tokenloom.assets.fingerprints.minhash import band_keys, bands_of, shingles, signatures
from tokenloom.assets.stage.contract import Contract, column, row_column
from tokenloom.assets.stage.definition import FIXED_TEXTS, ChunkOutput, Context, Reads, Stage, Work
from tokenloom.assets.stage.forms import FORMS
from tokenloom.assets.stage.names import COLUMNS, FINGERPRINTS
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.config.sections import DedupConfig
from tokenloom.resources.tables.hashes import VERSION, Hashes, Words, hash_records, mix
from tokenloom.resources.tables.ragged import Ints, one_array, sum_rows, text_parts

HASH, WORDS, BAND = "hash", "words", "band_"
_ODD = np.uint64(0xD1B54A32D192ED03)

CONTRACT = Contract(
    "The fingerprint of one row.",
    {
        ROW: row_column(),
        HASH: column(
            "Hash of the texts that `dedup.exact` compares; null without words.", pa.binary(16), nullable=True
        ),
        WORDS: column("Number of words; rows without words are not compared.", pa.int32()),
    },
    {"bands are numbered hashes": lambda table: {*table.schema.types[3:]} <= {pa.uint64()}},
    open=True,
)


@dataclass(frozen=True)
class Compared:
    """What of rows is compared, and how.

    Args:
        form: the name of the rows' form.
        answers: for the form `fields`, the columns that are trained.
        exact: `row`, or `prompt`.
        ngram_size: words of an n-gram; 0: rows have no bands.
        bands, band_rows: number of bands, and of permutations of each.
    """

    form: str
    answers: tuple[str, ...] = ()
    exact: str = "row"
    ngram_size: int = 0
    bands: int = 0
    band_rows: int = 0

    @classmethod
    def of(cls, config: PipelineConfig, form: str) -> Compared:
        """Return what the YAML asks for.

        Raises:
            ConfigError: the rows have no prompt to compare.
        """
        declared = config.dedup or DedupConfig()
        answers = config.prompt_template.trained_columns
        if declared.exact == PROMPT and not has_sides(form, answers):
            raise config.fault("dedup.exact", "these rows have no prompt by itself; set exact: row")
        near = declared.near
        shape = (near.ngram_size, *bands_of(near.threshold, near.num_perm)) if near else ()
        return cls(form, () if form in FORMS else answers, declared.exact or "row", *shape)

    def texts_of(self, table: pa.Table, search: str = "all", calls: Calls | None = None) -> Texts:
        """Return the texts of rows, and the row of each."""
        return row_texts(table, self.form, search, self.answers, calls)


class FingerprintsStage(Stage):
    name = FINGERPRINTS
    description = "Hashes that the same and similar rows share."
    version = 2
    upstream = (COLUMNS,)
    libraries = ("pyarrow", "numpy")
    # keys hold the number of bands that the settings give
    reads = (Reads(lambda config: {"dedup": config.dedup and config.dedup.model_dump(mode="json")}, "later"),)
    compressed = False
    section = "dedup"

    def prepare(self, context: Context) -> Work:
        compared = Compared.of(context.config, context.facts(COLUMNS)["mapping"]["form"])
        read = {**vars(compared), "answers": list(compared.answers), "unicode": VERSION}
        return Work(self.inputs(context), partial(fingerprints, compared=compared), settings=read)


STAGE = FingerprintsStage()


def fingerprints(table: pa.Table, compared: Compared) -> ChunkOutput:
    """Return the fingerprint of each row of a canonical chunk."""
    rows = table.num_rows
    calls = calls_of(table)
    apart = beside_texts(table, compared.form, calls)
    # similarity compares what rows say themselves; exact hashes all of the row, or its prompt
    words, folded, near = _near(*compared.texts_of(table, OWN), rows, compared, apart)
    word_counts, whole = words, compared.exact != PROMPT
    texts, row = compared.texts_of(table, "all" if whole else PROMPT, calls)
    if not whole:
        word_counts, folded, _ = _near(texts, row, rows, replace(compared, bands=0), apart)
    if whole:
        beside = apart ^ message_fields(table)
    else:
        beside = beside_texts(table.select([name for name in OF_PROMPTS if name in table.column_names]), compared.form)
    exact = _exact(texts, row, folded, beside)
    columns = {ROW: one_array(table[ROW]), HASH: pc.if_else(pa.array(word_counts > 0), exact, None)}
    columns |= {WORDS: pa.array(words, pa.int32())}
    columns |= {f"{BAND}{number:03}": pa.array(keys) for number, keys in enumerate(near)}
    return ChunkOutput(pa.table(columns), rows)


def _near(texts: pa.Array, row: Ints, rows: int, how: Compared, apart: Hashes) -> tuple[Ints, Hashes, list[Hashes]]:
    """Return the number of words of each row, int64 [rows], a hash of its words, and the keys of its bands, each uint64
    [rows]."""
    counts, folded, lengths = np.zeros(rows, np.int64), np.zeros(rows, np.uint64), np.zeros(rows, np.int64)
    permutations = how.bands * how.band_rows
    of_blocks = [np.zeros((permutations, 0), np.uint32)]
    for some, rows_of in text_blocks(texts, row):
        first, last = int(rows_of[0]), int(rows_of[-1]) + 1
        words, part = Words.of_rows(some, last - first), slice(first, last)
        bounds = words.offsets[np.searchsorted(rows_of, np.arange(first, last + 1))]
        counts[part], folded[part] = np.diff(bounds), words.hashes(bounds[:-1], bounds[1:])
        if how.bands:
            hashes, offsets = shingles(words, rows_of - first, last - first, how.ngram_size)
            lengths[part] = np.diff(offsets)
            if apart.any():
                # rows that differ beside their texts, as in their calls, share no n-gram
                hashes ^= np.repeat(apart[part], lengths[part])
            of_blocks.append(signatures(hashes, np.unique(offsets), permutations))
    having = np.flatnonzero(lengths)
    keys = [np.zeros(rows, np.uint64) for _ in range(how.bands)]
    made = band_keys(np.concatenate(of_blocks, axis=1), how.bands, how.band_rows) if len(having) else ()
    for band, key in zip(keys, made, strict=False):
        band[having] = key
    return counts, folded, keys


def _exact(texts: pa.Array, row: Ints, folded: Hashes, beside: Hashes) -> pa.Array:
    """Return a hash of the texts of each row, in their order, with what is beside them, and one of its words: 16 bytes.

    Texts are compared in Unicode's form C, without white space at their ends.
    """
    offsets, data = text_parts(_trimmed(texts))
    bounds = np.searchsorted(row, np.arange(len(folded) + 1))
    # a text's place in its row is part of its hash, or swapped texts would be the same
    place = mix((np.arange(len(row)) - bounds[row] + 1).astype(np.uint64) * _ODD)
    placed = mix(hash_records(data, offsets[:-1], offsets[1:]) ^ place)
    whole = mix(sum_rows(placed.view(np.int64), bounds).view(np.uint64) + beside)
    buffers = [None, pa.py_buffer(np.stack([whole, folded], axis=1).tobytes())]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(folded), buffers)


def _trimmed(texts: pa.Array) -> pa.Array:
    plain = pc.string_is_ascii(texts)
    trimmed = pc.ascii_trim_whitespace(texts)
    if pc.all(plain).as_py():
        return trimmed
    other = pc.utf8_normalize(texts.filter(pc.invert(plain)), form="NFC")
    return pc.replace_with_mask(trimmed, pc.invert(plain), pc.utf8_trim_whitespace(other))


def probe() -> list[pa.Table]:
    """Return the fingerprints of fixed texts."""
    texts = pa.array([text for each in FIXED_TEXTS for text in (each, each * 20, f" {each}\n")])
    table = pa.table({ROW: pa.array(range(len(texts)), pa.int32()), "text": texts})
    return [fingerprints(table, Compared("text", ngram_size=3, bands=4, band_rows=2)).table]
