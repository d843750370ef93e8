"""dedup: the canonical rows that repeat no earlier row."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.contract import contract_of
from tokenloom.assets.dedup.candidates import MOST
from tokenloom.assets.dedup.decision import Rows, decide
from tokenloom.assets.fingerprints.minhash import bands_of, recall
from tokenloom.assets.fingerprints.stage import CONTRACT as FINGERPRINT
from tokenloom.assets.fingerprints.stage import HASH, Compared
from tokenloom.assets.stage.definition import ChunkOutput, Context, InputChunk, OutputChunks, Stage, Work, settings
from tokenloom.assets.stage.names import COLUMNS, DEDUP, FINGERPRINTS
from tokenloom.assets.stage.rejects import DUPLICATE, EXCERPT_CHARACTERS, NEAR_DUPLICATE, REJECTS, ROW, no_rejects
from tokenloom.config import PipelineConfig
from tokenloom.config.sections import NearConfig
from tokenloom.errors import DatasetNotFoundError, StoreError
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.objects import digest_table
from tokenloom.resources.tables.ragged import flags_of, one_array
from tokenloom.resources.tables.sequence_schema import check_schema

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest, ManifestChunk

_MESSAGE = re.compile(r"(?:(\d{1,3})% similar to|the same as) an earlier row \(fingerprint ([0-9a-f]{32})\)")


@dataclass(frozen=True)
class Repeat:
    """A dropped row: its place in the source, its split, why it was dropped, how similar it is, and how it starts."""

    place: str
    split: str
    code: str
    similarity: float
    start: str


@dataclass(frozen=True)
class Group:
    """A kept row, by its place in the source, and the rows that were dropped for it."""

    kept: str
    split: str
    repeats: list[Repeat]


def groups(store: ArtifactStore, dataset: str, against: Sequence[str] = ()) -> list[Group]:
    """Return the kept rows that others repeat, those that most others repeat first.

    Args:
        against: the datasets whose rows come before; theirs have the name of their dataset before their place.
    """
    manifest = store.manifest(dataset, DEDUP)
    found: dict[str, list[Repeat]] = {}
    for chunk in manifest.chunks:
        for record in store.objects.get_intact(chunk.rejects).to_pylist() if chunk.rejects else ():
            place = chunk.place(record[ROW])
            parts = _MESSAGE.fullmatch(record["message"])
            likeness, kept = (int(parts[1] or 100) / 100, parts[2]) if parts else (1.0, "")
            found.setdefault(kept, []).append(Repeat(place, chunk.split, record["code"], likeness, record["excerpt"]))
    places: dict[str, tuple[str, str]] = {}
    for name in (*against, dataset):
        left = found.keys() - places.keys()
        prefix = "" if name == dataset else f"{name}: "
        of_name = _places(store, store.manifest(name, FINGERPRINTS), left) if left else ()
        places |= {kept: (f"{prefix}{place}", split) for kept, (place, split) in of_name}
    made = [Group(*places.get(kept, ("a row that is gone", "")), repeats) for kept, repeats in found.items()]
    return sorted(made, key=lambda group: -len(group.repeats))


def _places(store: ArtifactStore, prints: Manifest, wanted: Collection[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each hash with the place and the split of the first row that has it."""
    left = {bytes.fromhex(each) for each in wanted if each}
    for number in source_order(prints.chunks):
        if not left:
            return
        chunk = prints.chunks[number]
        table = store.objects.get_intact(chunk.output)
        hashes = one_array(table[HASH])
        rows = np.flatnonzero(pc.is_in(hashes, pa.array([*left], pa.binary(16))).to_numpy(zero_copy_only=False))
        for row in rows.tolist():
            digest = hashes[row].as_py()
            if digest in left:
                left.discard(digest)
                yield digest.hex(), (chunk.place(table[ROW][row].as_py()), chunk.split)


_DECISION = pa.schema(
    [
        ("chunk", pa.int32()),
        (ROW, pa.int32()),
        ("survivor", pa.binary(16)),
        ("similarity", pa.float32()),
        ("exact", pa.bool_()),
    ]
)
"""A dropped row: its chunk and position, the hash of the row that is kept, and how similar it is to that."""
_VERSION = 3
"""Increase this when the decision changes for the same rows."""
_TRAIN = "train"


class DedupStage(Stage):
    name = DEDUP
    description = "The rows that repeat no earlier row."
    version = 1
    upstream = (COLUMNS, FINGERPRINTS)
    replaces = COLUMNS
    libraries = ("pyarrow", "numpy")
    # the digest of a chunk's input holds the rows that it loses
    reads = (
        settings("dedup", "exact", "against", where="chunks"),
        settings("dedup.near", *NearConfig.model_fields, when="dedup.near", where="chunks"),
    )
    droppable = True
    facts_ahead = True
    section = DEDUP
    remedies: ClassVar = {
        DUPLICATE: "to keep such rows, set dedup.exact: null",
        NEAR_DUPLICATE: "to keep such rows, raise dedup.near.threshold",
    }

    def prepare(self, context: Context) -> Work:
        compared = Compared.of(context.config, context.facts(COLUMNS)["mapping"]["form"])
        above = self.above(context.config)[0]
        decided, told = _decided(context, above, compared)
        chunks = OutputChunks(above, partial(_with_verdicts, context, decided), context.manifest)
        keep = partial(without_repeats, compared=compared)
        return Work(chunks, keep, notes=lambda: {"notices": told} if told else {})

    def notices(self, context: Context, manifest: Manifest) -> list[str]:
        declared, counters, sentences = context.config.dedup, manifest.counters, []
        if lost := manifest.total("filtered"):
            same, near = counters.get(DUPLICATE, 0), counters.get(NEAR_DUPLICATE, 0)
            sentences.append(
                f"{lost:,} of {manifest.total('rows_in'):,} rows repeat an earlier one: {same:,} are the same, "
                f"{near:,} nearly; they are dropped; `tokenloom dropped` lists them"
            )
        if declared is not None and (near := declared.near) is not None:
            bands, rows = bands_of(near.threshold, near.num_perm)
            likely = recall(near.threshold, bands, rows)
            chance = f"two rows of similarity {near.threshold:g} are compared with probability {likely:.3f}"
            sentences.append(f"{bands} bands of {rows}: {chance}")
        return sentences

    def shown(self, config: PipelineConfig, manifest: Manifest, first: pa.Table) -> dict[str, Any]:
        return {"dropped": self._table(manifest), **super().shown(config, manifest, first)}

    def summary(self, config: PipelineConfig, manifest: Manifest) -> dict[str, Any]:
        return {"dropped": self._table(manifest)}

    def _table(self, manifest: Manifest) -> list[dict[str, Any]]:
        counters = manifest.counters
        named = sorted((name for name in counters if name.startswith(_BUCKET)), reverse=True)
        same = [{"similarity": "the same", "rows": counters[DUPLICATE]}] if counters.get(DUPLICATE) else []
        return [*same, *({"similarity": name.removeprefix(_BUCKET), "rows": counters[name]} for name in named)]


STAGE = DedupStage()
_BUCKET = "similarity:"


def without_repeats(loaded: pa.Table | tuple[pa.Table, pa.Table], compared: Compared) -> ChunkOutput:
    """Return the rows of a canonical chunk that are kept, and a record of each that is not.

    Args:
        loaded: the rows; if some are dropped, also these, as in the decision.
    """
    table, verdict = loaded if isinstance(loaded, tuple) else (loaded, None)
    if verdict is None:
        return ChunkOutput(table, table.num_rows)
    lost = pc.is_in(table[ROW], verdict[ROW])
    gone = table.filter(lost)
    exact = verdict["exact"]
    percent = pc.cast(pc.floor(pc.multiply(verdict["similarity"], 100)), pa.int32()).cast(pa.string())
    relation = pc.if_else(exact, "the same as", pc.binary_join_element_wise(percent, "% similar to", ""))
    texts, row = compared.texts_of(gone)
    first = np.searchsorted(row, np.arange(gone.num_rows))
    columns = [
        verdict[ROW],
        pa.repeat(pa.scalar(DEDUP), len(verdict)),
        pc.if_else(exact, DUPLICATE, NEAR_DUPLICATE),
        pa.repeat(pa.scalar(""), len(verdict)),
        pc.binary_join_element_wise(relation, " an earlier row (fingerprint ", _hex(verdict["survivor"]), ")", ""),
        pc.utf8_slice_codeunits(texts.take(pa.array(first)), 0, EXCERPT_CHARACTERS),
    ]
    records = pa.table(columns, schema=REJECTS)
    near = verdict["similarity"].to_numpy()[~flags_of(exact)]
    counters = {DUPLICATE: len(verdict) - len(near), NEAR_DUPLICATE: len(near)}
    counters = {code: rows for code, rows in counters.items() if rows}
    for start, rows in zip(*np.unique(np.floor(near * 20) / 20, return_counts=True), strict=True):
        counters[f"{_BUCKET}{start:.2f}"] = int(rows)
    kept = table.filter(pc.invert(lost)).combine_chunks()
    return ChunkOutput(kept, table.num_rows, records, gone.num_rows, counters=counters)


_DIGITS = np.array([f"{byte:02x}" for byte in range(256)], "S2")


def _hex(hashes: pa.ChunkedArray) -> pa.Array:
    array = one_array(hashes)
    data = np.frombuffer(array.buffers()[1], np.uint8)[16 * array.offset : 16 * (array.offset + len(array))]
    return pa.array(_DIGITS[data].view("S32")).cast(pa.string())


def _decided(context: Context, above: str, compared: Compared) -> tuple[dict[int, pa.Table], list[str]]:
    """Return the rows that chunks lose, by their number, and sentences about what was not compared. Stored as an
    action, so that it is computed once for the same rows."""
    store, declared = context.store, context.config.dedup
    assert declared is not None
    chunks, prints = context.manifest(above).chunks, context.manifest(FINGERPRINTS).chunks
    if [chunk.output for chunk in chunks] != [chunk.input for chunk in prints]:
        raise StoreError(f"dedup: {above} and fingerprints are from different builds; build the dataset again")
    threshold = None if declared.near is None else declared.near.threshold
    others = [_other(context, number, compared) for number in range(len(declared.against))]
    settings = [vars(compared) | {"answers": list(compared.answers)}, declared.exact, threshold]
    # the decision depends on all rows and hashes of the dataset, and on those of the datasets before it
    identity = [(chunk.split, chunk.output, of_prints.output) for chunk, of_prints in zip(chunks, prints, strict=True)]
    before = [[(chunk.input, chunk.output) for chunk in chunks_before] for chunks_before, _ in others]
    key = digest_json(["dedup", _VERSION, settings, identity, *([before] if before else [])])
    action = store.find_action(key)
    if action is None:
        table, told = _decide(context, above, compared, others)
        counts: dict[str, int] = dict.fromkeys(("rows_in", "rows_out", "rejected", "filtered", "tokens"), 0)
        action = store.put_action(key, table, no_rejects(), counts, told, compressed=True)
    else:
        table = store.objects.get_verified(action.output, partial(check_schema, _DECISION))
    bounds = np.searchsorted(table["chunk"].to_numpy(), np.arange(len(chunks) + 1))
    lost = [table.slice(start, end - start).drop_columns(["chunk"]) for start, end in pairwise(bounds.tolist())]
    told = [sentence.format(number) for name, sentence in _TOLD.items() if (number := action.counters.get(name))]
    return {number: some.combine_chunks() for number, some in enumerate(lost) if len(some)}, told


_TOLD = {
    "shared": "{:,} n-grams that nearly all rows have do not make two of them similar",
    "limited": f"{{:,}} rows share rare n-grams with more than {MOST} others; similar rows can be left among them",
}
"""What a decision counts, and what is said of it."""


def source_order(chunks: Sequence[ManifestChunk]) -> list[int]:
    """Return the numbers of chunks in the order in which their rows are kept: those of `train` last."""
    return sorted(range(len(chunks)), key=lambda number: chunks[number].split == _TRAIN)


def _decide(
    context: Context, above: str, compared: Compared, others: Sequence[Other]
) -> tuple[pa.Table, dict[str, int]]:
    store, inputs, declared = context.store, [*context.input_chunks(above)], context.config.dedup
    assert declared is not None
    prints = context.manifest(FINGERPRINTS).chunks
    order, foreign = source_order(prints), [chunk for chunks, _ in others for chunk in chunks]
    all_prints = [*foreign, *(prints[number] for number in order)]
    store.objects.fetch([chunk.output for chunk in all_prints])
    for chunk in all_prints:
        store.objects.get_verified(chunk.output, _check)

    def load(place: int) -> pa.Table:
        if place < len(foreign):
            return store.objects.get_verified(foreign[place].input, _check_rows)
        chunk = inputs[order[place - len(foreign)]]
        context.ensure(above, [chunk.digest])
        return chunk.load()

    how = [*(how for chunks, how in others for _ in chunks), *(compared for _ in order)]
    counts = [chunk.rows_out for chunk in all_prints]
    rows = Rows(counts, lambda place: store.objects.get(all_prints[place].output), load, how, len(foreign))
    near = declared.near
    decision = decide(rows, declared.exact is not None, None if near is None else near.threshold)
    place = np.searchsorted(rows.starts, decision.rows, side="right") - 1 - len(foreign)
    chunk = np.array(order, np.int64)[place] if order else place
    position = rows.column(ROW)[decision.rows] if len(rows) else place
    # a kept row is named by its hash: its place can change where its content does not
    hashes = rows.hashes()[0][decision.survivors]
    survivor = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(chunk), [None, pa.py_buffer(hashes.tobytes())])
    columns = [pa.array(chunk, pa.int32()), pa.array(position, pa.int32()), survivor]
    columns += [pa.array(decision.similarities), pa.array(decision.exact)]
    table = pa.table(columns, schema=_DECISION).sort_by([("chunk", "ascending"), (ROW, "ascending")])
    return table, {name: getattr(decision, name) for name in _TOLD}


Other = tuple[Sequence["ManifestChunk"], Compared]
"""The fingerprints of another dataset, in the order of its rows, and how its rows are compared."""


def _other(context: Context, number: int, compared: Compared) -> Other:
    """Return what is needed of a dataset in `dedup.against`; raise ConfigError if it has no such fingerprints."""
    assert context.config.dedup is not None
    name, setting = context.config.dedup.against[number], f"dedup.against.{number}"
    try:
        manifest = context.store.manifest(name, FINGERPRINTS)
    except DatasetNotFoundError as error:
        message = f"{name} is not built with a section dedup; give it one, and build it first"
        raise context.config.fault(setting, message) from error
    how = Compared(**{key: value for key, value in manifest.parts["settings"].items() if key in vars(compared)})
    how = replace(how, answers=tuple(how.answers))
    if replace(how, form="", answers=()) != replace(compared, form="", answers=()):
        message = f"{name} is built with other dedup settings; set the same in both, and build it again"
        raise context.config.fault(setting, message)
    return [manifest.chunks[place] for place in source_order(manifest.chunks)], how


def _check_rows(table: pa.Table) -> None:
    if problems := contract_of(table.schema).problems(table):
        raise ValueError(problems[0])


def _check(table: pa.Table) -> None:
    if problems := FINGERPRINT.problems(table):
        raise ValueError(problems[0])


def _with_verdicts(context: Context, decided: Mapping[int, pa.Table], above: str) -> Iterator[InputChunk]:
    """Yield the chunks of rows; those that lose rows with these rows, whose digest is then part of the chunk's."""
    for number, chunk in enumerate(context.input_chunks(above)):
        verdict = decided.get(number)
        if verdict is None:
            yield chunk
        else:
            digest = digest_json([chunk.digest, digest_table(verdict)])
            yield chunk.loading(lambda chunk=chunk, verdict=verdict: (chunk.load(), verdict), digest)


def probe() -> list[pa.Table]:
    """Return nothing: the stage keeps rows as they are."""
    return []
