"""tokens: `input_ids` and the spans in tokens, without truncation or padding.

The text between two control tokens is tokenized as a whole, never prompt and answer separately. The bytes that each
token stands for decide whether it is trained. The ids of pre-tokenized rows are checked against the tokenizer, and the
token of an image is expanded to the tokens that the model sees.
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

from tokenloom.assets.prompts.segments import (
    Segments,
    once_at_control,
    segments,
    spans_cover_ids,
    strip_at_control,
    token_spans,
)
from tokenloom.assets.prompts.spans import IMAGE, SPAN_ROLES, SPANS, FlatSpans, Piece, assemble, flat_spans, span_lists
from tokenloom.assets.stage.contract import Contract, column, row_column, with_token_columns
from tokenloom.assets.stage.definition import FIXED_TEXTS, ChunkOutput, Context, Stage, Work, settings
from tokenloom.assets.stage.images import EXPANDED_IMAGE, EXPANDED_IMAGES
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
from tokenloom.assets.tokens.encode import WORTH_BYTES, ContentEncoder, count_span_tokens
from tokenloom.config import PipelineConfig
from tokenloom.errors import StoreError
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.processors.certificate import CERTIFICATE, CertifiedProcessor
from tokenloom.resources.processors.processor import PROCESSOR_FILES, ProcessorError
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.blobs.blobs import MEDIA
from tokenloom.resources.tables.ragged import (
    Ints,
    any_of,
    list_array,
    list_parts,
    offsets_of,
    one_array,
    ranges,
    row_of,
    text_array,
    text_parts,
)
from tokenloom.resources.tables.sequence_schema import ID_TYPES
from tokenloom.resources.tokenizers import TOKENIZER, naming_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenizers import Tokenizer

    from tokenloom.assets.tokens.encode import ContentEncoder
    from tokenloom.resources.processors.processor import Expansion, Processor
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
    # the last place stands for all ids beyond the vocabulary
    has_token = np.append(encoder.known, False)
    unknown = ~has_token[np.minimum(values, len(has_token) - 1)]
    if not unknown.any():
        return table, no_rejects()
    rows, places = table[ROW].to_numpy(), np.flatnonzero(unknown)
    document = row_of(np.diff(offsets))[places]
    bad, first = np.unique(rows[document], return_index=True)
    firsts = zip(places[first].tolist(), document[first].tolist(), strict=True)
    shown = [f"token {place - int(offsets[number])}: {values[place]}" for place, number in firsts]
    message = f"an id is not in the tokenizer, whose largest is {encoder.vocab_size - 1:,}"
    rejects = reject_rows(bad, "tokens", "unknown_id", "input_ids", message, shown)
    return table.filter(pa.array(~np.isin(rows, bad))).combine_chunks(), rejects


def _count_stops(offsets: np.ndarray, trained: np.ndarray, control: np.ndarray) -> dict[str, int]:
    """Count the runs of trained tokens, and those that no control token ends."""
    # borders of documents end runs of trained tokens
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
    return [at for at, given, other in zip(places, ids, again, strict=True) if given != other.ids]


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
    places = _retokenized(table, Tokenizer.from_buffer(tokenizer()))[:SHOWN]
    return ", such as " + ", ".join(chunk.place(table[ROW][at].as_py()) for at in places)


_ROLE = SPAN_ROLES.index(IMAGE)
_STRAY = "the content has the token of an image, which stands for no image of the row"


def expand_images(table: pa.Table, processor: Processor) -> tuple[pa.Table, pa.Table]:
    """Put the tokens of images in place of the one token that stands for each.

    Args:
        table: row position, `input_ids`, spans in tokens, and `media`, of whose images each has a span of one token.

    Returns:
        the table, with the number of tokens and patches of each image in `media`; and rejects for the rows with an
        image whose size the processor refuses, or with the token of an image that no image stands for.
    """
    offsets, images = list_parts(table[MEDIA])
    counts = np.diff(offsets)
    width, height = (images.field(name).to_numpy() for name in ("width", "height"))
    several = np.repeat(counts > 1, counts)
    # images of one size, alone in their row or not, expand alike: the processor is asked once for each kind
    kinds, kind = np.unique(np.stack([width, height, several], axis=1), axis=0, return_inverse=True)
    expansions = [_expansion(processor, *each) for each in kinds.tolist()]
    id_offsets, ids = list_parts(table["input_ids"])
    spans = flat_spans(table["spans"])
    base = id_offsets[row_of(spans.counts)]
    at = (spans.start + base)[spans.role == _ROLE]
    stray = np.isin(ids.to_numpy(), processor.image_token_ids)
    stray[at] = False
    problems = [(any_of(stray, np.diff(id_offsets)), "control_token_in_content", _STRAY)]
    for message in sorted({text for text in expansions if isinstance(text, str)}):
        refused = np.array([text == message for text in expansions], bool)
        problems.append((any_of(refused[kind.ravel()], counts), "image_refused", message))
    numbers, rejects, lost = table[ROW].to_numpy(), list[pa.Table](), np.zeros(table.num_rows, bool)
    for flags, code, message in problems:
        rows = np.unique(numbers[flags & ~lost])
        rejects.append(reject_rows(rows, "tokens", code, "images", message, [""] * len(rows)))
        lost |= np.isin(numbers, rows)
    if lost.any():
        # once more without the rejected rows; of those that are left, none is rejected
        rest, _ = expand_images(table.filter(pa.array(~lost)).combine_chunks(), processor)
        return rest, join_rejects(rejects)

    chosen = kind.ravel()
    sizes = np.array([len(each.ids) for each in expansions if not isinstance(each, str)], np.int64)[chosen]
    patches = np.array([each.patches for each in expansions if not isinstance(each, str)], np.int64)[chosen]
    lengths = np.ones(len(ids), np.int64)
    lengths[at] = sizes
    moved = offsets_of(lengths)
    flat = np.repeat(ids.to_numpy(), lengths)
    if len(chosen):
        expanded = [each.ids for each in expansions if not isinstance(each, str)]
        flat[ranges(moved[at], sizes)] = np.concatenate([expanded[number] for number in chosen.tolist()])
    # both edges move by what the images before them grew
    start, end = (moved[edge + base] - moved[base] for edge in (spans.start, spans.end))
    attributes = (spans.role, spans.message, spans.weight, spans.control)
    structs = [*images.flatten(), pa.array(sizes, pa.int32()), pa.array(patches, pa.int32())]
    media = pa.StructArray.from_arrays(structs, fields=list(EXPANDED_IMAGE))
    for name, values in {
        "input_ids": list_array(moved[id_offsets], pa.array(flat, ids.type)),
        "spans": span_lists(spans.counts, start, end, *attributes),
        MEDIA: list_array(offsets, media).cast(EXPANDED_IMAGES),
    }.items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    return table, join_rejects(rejects)


def _expansion(processor: Processor, width: int, height: int, several: int) -> Expansion | str:
    try:
        return processor.expansion(width, height, 1 + several)
    except ProcessorError as error:
        return str(error)


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
    version = 3
    upstream = (PROMPTS, TOKENIZERS)
    libraries = ("pyarrow", "numpy", "tokenizers")
    reads = (settings("tokenizer", "control_tokens_in_content"),)
    droppable = True
    compressed = False
    section = "tokenizer"
    remedies: ClassVar = {
        "unknown_id": "set tokenizer.name_or_path to the tokenizer that the ids come from",
        "image_refused": "resize the image, or drop such rows with dataset.filters",
        "control_token_in_content": "set tokenizer.control_tokens_in_content: split to tokenize it as plain text",
    }

    def prepare(self, context: Context) -> Work:
        facts = context.facts(TOKENIZERS)
        policy: ControlPolicy = context.config.tokenizer.control_tokens_in_content
        tokenize = LazyTokenize(context.store, facts["digest"], tuple(facts["control"]), policy)
        sides = {"tokenizer": digest_bytes(tokenizer_json(context.store, facts["digest"]))}
        if context.config.media is not None:
            files = tokenizer_files(context.store, facts["digest"])
            sides["processor"] = digest_json({name: digest_bytes(files[name]) for name in files if name in _PROCESSOR})
        once = {"once": True} if policy == "keep" else {}  # the version of what `keep` does
        return Work(self.inputs(context), tokenize, sides, {"control": facts["control"], **once}, load=tokenize.load)

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
        of_control = control_notice(manifest, policy, context.store, context.manifest)
        return [*of_control, *([notice] if notice else [])]

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
    offsets = encoded.offsets[np.searchsorted(cut.row, np.arange(table.num_rows + 1))]
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
        starts = np.flatnonzero(np.diff(out[ROW].to_numpy(), prepend=-1))  # the first text of each row
        counters[FURTHER] = int(offsets[-1] - np.maximum.reduceat(np.diff(offsets), starts).sum())
    return ChunkOutput(out, rows_in, rejects, 0, rows_out, int(offsets[-1]), counters, encoded.engine)


def _token_spans(spans: FlatSpans, counts: Ints, offsets: Ints) -> pa.Array:
    """Return the spans in tokens, without empty ones; int64 [spans] tokens of each, int64 [rows + 1] first token of
    rows."""
    columns = [spans.role, spans.message, spans.weight, spans.control]
    spans_per_row = spans.counts
    row = row_of(spans_per_row)
    end = np.cumsum(counts)
    if not counts.all():
        used = np.flatnonzero(counts)
        columns, row, end, counts = [column[used] for column in columns], row[used], end[used], counts[used]
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
        total = pc.count_substring_regex(text_array(bounds[[0, -1]], data), any_of)[0].as_py()
        if total == np.count_nonzero(cut.control):
            return 0
    return pc.sum(pc.count_substring_regex(cut.text.filter(pa.array(~cut.control)), any_of)).as_py() or 0


@lru_cache(maxsize=8)
def _are_apart(tokens: tuple[str, ...]) -> bool:
    """Return whether no token contains another, so that of two that overlap, neither hides a third."""
    return not any(one in other for one, other in permutations(tokens, 2))


def _without_control(table: pa.Table, control: tuple[str, ...]) -> tuple[pa.Table, pa.Table]:
    cut = segments(table)
    any_of = "|".join(map(re.escape, control))
    matches = np.asarray(pc.match_substring_regex(cut.text, any_of).to_numpy(zero_copy_only=False), bool)
    bad = np.zeros(table.num_rows, bool)
    bad[cut.row[matches & ~cut.control]] = True
    rows = table[ROW].to_numpy()
    bad = np.isin(rows, rows[bad])
    flags = pa.array(bad & first_of_row(table))
    numbers, texts = (one_array(table[name]).filter(flags) for name in (ROW, "text"))
    message = "the content contains a control token's text"
    rejects = reject_rows(numbers, "tokens", "control_token_in_content", "text", message, texts)
    return table.filter(pa.array(~bad)).combine_chunks(), rejects


_CONTROL = ("<s>", "</s>")
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def probe() -> list[pa.Table]:
    texts = pa.array(FIXED_TEXTS)
    parts = [Piece("<s>", control=True), Piece("Q: "), Piece(None, 0, "input"), Piece("</s>", weight=1.0, control=True)]
    prompts = assemble(pa.array(range(len(texts)), pa.int32()), parts, [texts])
    tables = []
    parsed = json.loads(trained())
    split = {"type": "Split", "pattern": {"Regex": _PATTERN}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    parsed["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}
    parsed["normalizer"] = {"type": "NFC"}
    for tokenizer in (trained().decode(), json.dumps(parsed), _word_pieces()):
        encoder = ContentEncoder(tokenizer.encode(), _CONTROL, keep_control=False)
        tables.append(tokenize(prompts, encoder, _CONTROL, "split").table)
    return tables


def _word_pieces() -> str:
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

    normalizer = normalizers.BertNormalizer(lowercase=True)
    characters = sorted({char for text in FIXED_TEXTS for char in normalizer.normalize_str(text) if not char.isspace()})
    pieces = ["[UNK]", "q", ":", *characters, *(f"##{char}" for char in characters)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<s>", "</s>")])
    return tokenizer.to_str()
