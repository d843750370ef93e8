"""tokens: `input_ids` and the spans in tokens, without truncation or padding.

The text between two control tokens is tokenized as a whole, never prompt and answer separately. The bytes that each
token stands for decide whether it is trained.
"""

from __future__ import annotations

import json
import os
import re
from functools import cached_property, lru_cache
from itertools import permutations
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.segments import Segments, once_at_control, segments, strip_at_control
from tokenloom.assets.prompts.spans import SPANS, FlatSpans, Piece, assemble, span_lists
from tokenloom.assets.prompts.token_spans import spans_cover_ids
from tokenloom.assets.stage.contract import Contract, column, row_column, with_token_columns
from tokenloom.assets.stage.definition import FIXED_TEXTS, ChunkOutput, Context, Stage, Work, read_settings
from tokenloom.assets.stage.images import EXPANDED_IMAGES
from tokenloom.assets.stage.names import COLUMNS, PROMPTS, TOKENIZERS
from tokenloom.assets.stage.rejects import ROW, join_rejects, no_rejects, reject_rows
from tokenloom.assets.stage.rows import LABEL, count_rows, first_of_row, in_pairs, in_slices
from tokenloom.assets.tokenizer.stage import tokenizer_files, trained
from tokenloom.assets.tokens.answer_borders import (
    CONTROL_IN_CONTENT,
    JOINED,
    RECUT,
    Borders,
    border_notice,
    control_notice,
)
from tokenloom.assets.tokens.encode import WORTH_BYTES, ContentEncoder
from tokenloom.assets.tokens.given_ids import given_ids, given_notices
from tokenloom.assets.tokens.images import expand_images
from tokenloom.assets.tokens.loss_mask import count_span_tokens
from tokenloom.config import PipelineConfig
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.processors.certified import CERTIFICATE, CertifiedProcessor
from tokenloom.resources.processors.loading import PROCESSOR_FILES
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.blobs.blobs import MEDIA
from tokenloom.resources.tables.ragged import Ints, list_array, list_parts, one_array, row_of, text_array, text_parts
from tokenloom.resources.tables.sequence_schema import ID_TYPES
from tokenloom.resources.tokenizers import TOKENIZER

if TYPE_CHECKING:
    from tokenloom.resources.processors.processor import Processor


CONTRACT = Contract(
    "One tokenized row, not truncated and not padded.",
    {
        ROW: row_column(),
        "input_ids": column("Token ids, in the smallest unsigned type that fits the vocabulary.", *ID_TYPES),
        "spans": column("The spans of the text, in tokens; spans without a token are omitted.", SPANS),
        LABEL: column("KTO only: whether the answer is desired.", pa.bool_(), required=False),
        MEDIA: column(
            "The images of the row, with the numbers of their tokens and patches.", EXPANDED_IMAGES, required=False
        ),
    },
    {"spans partition the tokens": spans_cover_ids},
    pairs=True,
)


ControlPolicy = Literal["split", "reject", "keep"]

FURTHER = "tokens_of_further_texts"
"""Counter: with `turns: exact`, the tokens of all texts of a row but the longest."""

IMAGE_TOKENS = "image_tokens"
"""Counter: tokens of images."""

ENGINE = "TOKENLOOM_TOKENIZER_ENGINE"
"""Environment variable that forces an engine: `tokenizers`, or `gigatoken` wherever it is certified, also for small
chunks. The output is the same."""


_PROCESSOR = (*PROCESSOR_FILES, CERTIFICATE)


class TokensStage(Stage):
    name = "tokens"
    description = "The text as tokens, with the roles and loss weights of the prompts."
    version = 2
    upstream = (PROMPTS, TOKENIZERS)
    libraries = ("pyarrow", "numpy", "tokenizers")
    droppable = True
    compressed = False
    section = "tokenizer"
    remedies: ClassVar = {
        "unknown_id": "set tokenizer.name_or_path to the tokenizer that the ids come from",
        "image_refused": "resize the image, or drop such rows with dataset.filters",
        "control_token_in_content": "set tokenizer.control_tokens_in_content: split to tokenize it as plain text",
    }

    def settings(self, config: PipelineConfig) -> dict[str, Any]:
        return read_settings(config, "tokenizer.control_tokens_in_content")

    def prepare(self, context: Context) -> Work:
        facts = context.facts(TOKENIZERS)
        policy: ControlPolicy = context.config.tokenizer.control_tokens_in_content
        tokenize = LazyTokenize(context.store, facts["digest"], tuple(facts["control"]), policy)
        sides = {"tokenizer": digest_bytes(tokenizer_json(context.store, facts["digest"]))}
        if context.config.media is not None:
            files = tokenizer_files(context.store, facts["digest"])
            sides["processor"] = digest_json({name: digest_bytes(files[name]) for name in files if name in _PROCESSOR})
        once = {"once": True} if policy == "keep" else {}  # the version of what `keep` does
        settings = {"control": facts["control"], **once}
        return Work(self.inputs(context), tokenize, sides, settings, load=tokenize.load)

    def notices(self, context: Context, manifest: Manifest) -> list[str]:
        notes, written = context.manifest(PROMPTS).notes, context.facts(COLUMNS)["mapping"]["form"]
        if written == "tokens":
            digest = context.facts(TOKENIZERS)["digest"]
            return given_notices(manifest, context.store, lambda: tokenizer_json(context.store, digest))
        if "certificate" in notes:
            written = "chat"
        elif written == "fields" and not context.config.prompt_template.trained_columns:
            written = "marks"
        notice = border_notice(manifest.counters, written, notes.get("ends_before_space", False))
        policy = context.config.tokenizer.control_tokens_in_content
        found = control_notice(manifest, policy, context.store, context.manifest)
        return [*found, *([notice] if notice else [])]

    def contract(self, columns: pa.Schema) -> Contract:
        return with_token_columns(CONTRACT, columns)

    def shown(self, config: PipelineConfig, manifest: Manifest, first: pa.Table) -> dict[str, Any]:
        borders = {name: manifest.counters[name] for name in (JOINED, RECUT) if manifest.counters.get(name)}
        return {**super().shown(config, manifest, first), **borders}


STAGE = TokensStage()


def tokenizer_json(store: ArtifactStore, digest: str) -> bytes:
    """Return the content of tokenizer.json from the output of the tokenizer stage.

    Raises:
        StoreError: the output is missing or damaged.
    """
    return tokenizer_files(store, digest)[TOKENIZER]


class LazyTokenize:
    """Loads the tokenizer from the store when the first chunk needs it."""

    def __init__(self, store: ArtifactStore, digest: str, control: tuple[str, ...], policy: ControlPolicy):
        self._store, self._digest, self._control = store, digest, control
        self._policy: ControlPolicy = policy
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process loads the tokenizer there."""
        return LazyTokenize, (self._store, self._digest, self._control, self._policy)

    @cached_property
    def _encoder(self) -> ContentEncoder:
        content = tokenizer_json(self._store, self._digest)
        engine = os.environ.get(ENGINE)
        certificates = None if engine == "tokenizers" else self._store.certificates
        worth = 0 if engine == "gigatoken" else WORTH_BYTES
        return ContentEncoder(content, self._control, self._policy == "keep", certificates, worth)

    @cached_property
    def _processor(self) -> Processor:
        return CertifiedProcessor(tokenizer_files(self._store, self._digest)).processor

    def load(self) -> None:
        """Load the tokenizer, and its engine for large chunks."""
        self._loaded().load()

    def _loaded(self) -> ContentEncoder:
        with self._lock:
            return self._encoder

    def __call__(self, table: pa.Table) -> ChunkOutput:
        encoder = self._loaded()

        def compute(prompts: pa.Table) -> ChunkOutput:
            processor = self._processor if MEDIA in prompts.column_names else None
            return in_slices(lambda rows: tokenize(rows, encoder, self._control, self._policy, processor), prompts)

        return in_pairs(compute)(table)


def tokenize(
    table: pa.Table,
    encoder: ContentEncoder,
    control: tuple[str, ...],
    policy: ControlPolicy,
    processor: Processor | None = None,
) -> ChunkOutput:
    """Tokenize a chunk of prompts.

    Args:
        table: row position, text and spans; with a processor also `media`. Pre-tokenized rows have ids for a text.
        control: the tokenizer's control tokens.
        policy: what happens to the text of control tokens inside content.
        processor: makes the tokens of images.
    """
    if "input_ids" in table.column_names:
        return given_ids(table, encoder, control)
    rows_in, rejects = count_rows(table), no_rejects()
    if policy == "reject" and control:
        table, rejects = _without_control(table, control)
    whole = segments(table)
    cut = strip_at_control(once_at_control(whole) if policy == "keep" else whole, encoder.strips)
    encoded = encoder.encode(cut)
    counts, straddles, ending = count_span_tokens(cut, encoded)
    segments_before = np.searchsorted(cut.row, np.arange(table.num_rows + 1))
    offsets = encoded.offsets[segments_before]
    width = pa.uint16() if encoder.vocab_size <= 1 << 16 else pa.uint32()
    ids = pa.array(encoded.ids.astype(width.to_pandas_dtype(), copy=False))
    columns = {
        ROW: one_array(table[ROW]),
        "input_ids": list_array(offsets, ids).cast(pa.list_(width)),
        "spans": _token_spans(cut.spans, counts, offsets),
    }
    counters = {"straddles": straddles, CONTROL_IN_CONTENT: count_control(whole, control)}
    counters |= Borders.of(cut, encoded, encoder, text_parts(table["text"])[1], ending).counters()
    out = pa.table(columns)
    if processor is not None:
        out, unfit = expand_images(out.append_column(MEDIA, table[MEDIA]), processor)
        rejects, offsets = join_rejects([rejects, unfit]), list_parts(out["input_ids"])[0]
        counters[IMAGE_TOKENS] = int(list_parts(out[MEDIA])[1].field("tokens").to_numpy().sum())
    rows_out = count_rows(out)
    if rows_out < out.num_rows:
        counters[FURTHER] = int(offsets[-1]) - _longest_texts(out[ROW].to_numpy(), np.diff(offsets))
    return ChunkOutput(out, rows_in, rejects, 0, rows_out, int(offsets[-1]), counters, encoded.engine)


def _longest_texts(rows: np.ndarray, lengths: Ints) -> int:
    """Return the sum over rows of the tokens of the row's longest text; both arguments are [texts]."""
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    return int(np.maximum.reduceat(lengths, starts).sum())


def _token_spans(spans: FlatSpans, counts: Ints, offsets: Ints) -> pa.Array:
    """Return the spans in tokens; spans without tokens are dropped.

    Args:
        counts: int64 [spans], the number of tokens of each span.
        offsets: int64 [rows + 1], the first token of each row.
    """
    columns = [spans.role, spans.message, spans.weight, spans.control]
    spans_per_row = spans.counts
    row = row_of(spans_per_row)
    end = np.cumsum(counts)
    if not counts.all():
        kept = np.flatnonzero(counts)
        columns, row, end, counts = [column[kept] for column in columns], row[kept], end[kept], counts[kept]
        spans_per_row = np.bincount(row, minlength=len(offsets) - 1)
    end -= offsets[row]
    return span_lists(spans_per_row, end - counts, end, *columns)


def count_control(cut: Segments, control: tuple[str, ...]) -> int:
    """Return how often the text of a control token occurs in content."""
    if not control:
        return 0
    any_of = "|".join(map(re.escape, control))
    if _are_apart(control) and {*cut.tokens.dictionary.to_pylist()} <= {*control}:
        bounds, data = text_parts(cut.text)
        # as one text, much faster than one by one; each control segment has a match, so others are in content
        found = pc.count_substring_regex(text_array(bounds[[0, -1]], data), any_of)[0].as_py()
        if found == np.count_nonzero(cut.control):
            return 0
    content = cut.text.filter(pa.array(~cut.control))
    return pc.sum(pc.count_substring_regex(content, any_of)).as_py() or 0


@lru_cache(maxsize=8)
def _are_apart(tokens: tuple[str, ...]) -> bool:
    """Return whether no token contains another, so that of two that overlap, neither hides a third."""
    return not any(one in other for one, other in permutations(tokens, 2))


def _without_control(table: pa.Table, control: tuple[str, ...]) -> tuple[pa.Table, pa.Table]:
    """Return the rows whose content has no control token's text, and rejects for the others."""
    cut = segments(table)
    any_of = "|".join(map(re.escape, control))
    matches = np.asarray(pc.match_substring_regex(cut.text, any_of).to_numpy(zero_copy_only=False), bool)
    bad = np.zeros(table.num_rows, bool)
    bad[cut.row[matches & ~cut.control]] = True
    rows = table[ROW].to_numpy()
    bad = np.isin(rows, rows[bad])
    flags = pa.array(bad & first_of_row(table))
    rejects = reject_rows(
        one_array(table[ROW]).filter(flags),
        "tokens",
        "control_token_in_content",
        "text",
        "the content contains a control token's text",
        one_array(table["text"]).filter(flags),
    )
    return table.filter(pa.array(~bad)).combine_chunks(), rejects


_CONTROL = ("<s>", "</s>")
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def probe() -> list[pa.Table]:
    texts = pa.array(FIXED_TEXTS)
    pieces = [
        Piece("<s>", control=True),
        Piece("Q: "),
        Piece(None, 0, "input"),
        Piece("</s>", weight=1.0, control=True),
    ]
    prompts = assemble(pa.array(range(len(texts)), pa.int32()), pieces, [texts])
    tables = []
    for tokenizer in (trained().decode(), _by_pattern(), _word_pieces()):
        encoder = ContentEncoder(tokenizer.encode(), _CONTROL, keep_control=False)
        tables.append(tokenize(prompts, encoder, _CONTROL, "split").table)
    return tables


def _by_pattern() -> str:
    """Return the trained tokenizer with a normalizer, and a pattern that uses Unicode's letters and digits."""
    parsed = json.loads(trained())
    split = {"type": "Split", "pattern": {"Regex": _PATTERN}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    parsed["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}
    parsed["normalizer"] = {"type": "NFC"}
    return json.dumps(parsed)


def _word_pieces() -> str:
    """Return a WordPiece tokenizer whose vocabulary is the characters of the texts."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

    normalizer = normalizers.BertNormalizer(lowercase=True)
    characters = sorted({char for text in FIXED_TEXTS for char in normalizer.normalize_str(text) if not char.isspace()})
    pieces = ["[UNK]", "q", ":", *characters, *(f"##{char}" for char in characters)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<s>", "</s>")])
    return tokenizer.to_str()
