"""Rows as the model will see them, straight from the source, without a build; images are measured where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.building.build import Build
from tokenloom.assets.building.on_the_fly import PromptEngine, Step
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import ColumnMapping, resolve
from tokenloom.assets.prompts.chat_certificate import ends_before_space
from tokenloom.assets.prompts.images import Illustrated
from tokenloom.assets.prompts.inference import ChatPrompts
from tokenloom.assets.prompts.render import chat_format, is_chat, renderer
from tokenloom.assets.raw.chunks import source_chunks
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import sketch
from tokenloom.assets.shown_rows.token_runs import (
    FILTERED,
    Decoder,
    Shown,
    ShownRow,
    TokenRun,
    reject_reason,
    text_runs,
)
from tokenloom.assets.stage.definition import ChunkOutput, InputChunk
from tokenloom.assets.stage.names import RAW, SCHEMA
from tokenloom.assets.stage.rejects import ROW, join_rejects
from tokenloom.assets.tokens.answer_borders import border_notes
from tokenloom.assets.tokens.encode import ContentEncoder
from tokenloom.assets.tokens.stage import tokenize
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, StoreError
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.store.manifest_chunks import Run, source_place
from tokenloom.resources.store.objects import MEDIA, MediaStore
from tokenloom.resources.tables.ragged import sides
from tokenloom.resources.tokenizers import TOKENIZER, TokenizerSpec, resolve_tokenizer

HELD_BYTES = 256 << 20
"""The most bytes of image files that are held, for thumbnails."""


class SourceImages:
    """The images of the rows of one chunk after another. `Loader` takes it for a `MediaStore`.

    Args:
        config: the dataset's declaration.
        stored: the images of a store, which rows of it name; default: none.
    """

    def __init__(self, config: PipelineConfig, stored: MediaStore | None = None):
        self._config, self._stored = config, stored
        self._runs: tuple[Run, ...] = ()
        self._in_rows: Mapping[str, bytes] = {}
        self._held: dict[str, bytes] = {}

    def open(self, chunk: InputChunk, output: ChunkOutput) -> None:
        """Take the chunk of the next rows, and the images in them."""
        self._runs, self._in_rows = chunk.runs, output.media

    def put_all(self, contents: Mapping[str, bytes]) -> None:
        """Hold images, as long as there are few."""
        if sum(map(len, (*self._held.values(), *contents.values()))) <= HELD_BYTES:
            self._held |= contents

    def _hold(self, address: str) -> str:
        from tokenloom.assets.media.places import read_image

        content = read_image(address)
        digest = digest_bytes(content)
        self.put_all({digest: content})
        return digest

    def missing(self, digests: Iterable[str]) -> set[str]:
        """Return which images are not held."""
        missing = {*digests} - self._held.keys() - self._in_rows.keys()
        return missing if self._stored is None else self._stored.missing(missing)

    def read(self, digest: str) -> bytes:
        """Return the bytes of an image.

        Raises:
            StoreError: it is not held.
        """
        if (content := self._in_rows.get(digest) or self._held.get(digest)) is not None:
            return content
        if self._stored is None:
            raise StoreError(f"image {digest} is not held")
        return self._stored.read(digest)

    def into(self, canonical: Step) -> Step:
        """Return the function to canonical rows with their images measured."""
        from tokenloom.assets.media.places import Places
        from tokenloom.assets.media.stage import Loader, find_images, references, with_images

        places, most = Places.of(self._config), self._config.dataset.media.max_pixels

        def measured(rows: pa.Table) -> ChunkOutput:
            output = canonical(rows)
            self.put_all(output.media)
            named = ((path or "", source) for media, path, source in references(output.table, self._runs) if not media)
            states = find_images(named, places, self._hold)
            loader = Loader(lambda: output.table, self, self._runs, states, most)
            found = with_images(*loader())
            return replace(found, rows_in=output.rows_in, rejects=join_rejects([output.rejects, found.rejects]))

        return measured


class ImageEngine(PromptEngine):
    """A prompt engine for rows with images."""

    takes_images = True

    def __init__(self, config: PipelineConfig, heads: Sequence[pa.Table], images: SourceImages):
        super().__init__(config, heads)
        self._images, self._expanded = images, pa.table({})

    def prompt_only(self, rows: Any) -> pa.Table:
        """Return prompts for inference, with the images of each."""
        prompts = super().prompt_only(rows)
        return prompts.append_column(MEDIA, self._expanded[MEDIA]) if MEDIA in self._expanded.column_names else prompts

    def _training(self) -> Sequence[Step]:
        canonical, *further = super()._training()
        return [self._images.into(canonical), *further]

    def _inference(self, table: pa.Table, is_chat: bool) -> Sequence[Step]:
        canonical, render, *further = super()._inference(table, is_chat)
        expanded = self.tokenizer.images(self.config)
        if isinstance(render, ChatPrompts) and expanded is not None:
            render = Illustrated(render, expanded)
        return [self._images.into(canonical), render, *further]

    def _tokens(self, prompts: pa.Table) -> ChunkOutput:
        processor = self.tokenizer.processor
        if processor is None or MEDIA not in prompts.column_names:
            return super()._tokens(prompts)
        policy = self.config.tokenizer.control_tokens_in_content
        output = tokenize(prompts, self._encoder, self.tokenizer.control, policy, processor.processor)
        self._expanded = output.table
        return output


FIRST_ROWS = 3
"""Rows shown if none are named."""

MOST_HEADS = 32
"""Files of whose first chunks the columns are taken: there can be many thousands."""

Place = Callable[[int], str]
"""Returns the place in the source of a position in a raw chunk."""

Show = Callable[[pa.Table, Sequence[int], Place], tuple[list[Shown], pa.Table, dict[int, list[str]]]]
"""Shows the rows at some positions of a raw chunk. Returns what is shown of each, rejects of the chunk, and `notes` of
a `ShownRow` by position."""


def source_rows(
    config: PipelineConfig, rows: Sequence[int] | None, inference: bool = False, images: SourceImages | None = None
) -> Iterator[ShownRow]:
    """Yield rows in the order of the source, encoded by a `PromptEngine`.

    If the tokenizer is still to be trained, they have text but no tokens.

    Args:
        rows: their numbers among the raw rows of all files and splits, counted from 0; None: the first of them.
        inference: yield the prompts that the model gets at inference.
        images: where the images of rows are, to read them again.

    Raises:
        ConfigError: the YAML does not fit the data, or a row does not exist.
    """
    images = images or SourceImages(config)
    # Columns are those of all files: a role can be in the last file alone, and a chunk does not know the others.
    heads = [chunk.load().table for chunk in islice(source_chunks(config, heads=True), MOST_HEADS)]
    untrained = config.tokenizer.train and not inference
    show = _texts(config, heads) if untrained else _tokens(config, heads, inference, images)
    wanted, first = sorted({*(range(FIRST_ROWS) if rows is None else rows)}), 0
    for chunk in source_chunks(config):
        output = chunk.load()
        # Rows are counted as the source has them, also those that reading rejected.
        positions = np.sort(np.concatenate([table[ROW].to_numpy() for table in (output.table, output.rejects)]))
        here = {row: int(positions[row - first]) for row in wanted if first <= row < first + len(positions)}
        if here:
            images.open(chunk, output)
            place, at = partial(source_place, chunk.runs, chunk.unit), [*here.values()]
            shown, rejects, notes = show(output.table, at, place)
            rejected = [reject for table in (output.rejects, rejects) for reject in _only(table, at).to_pylist()]
            reasons = {reject[ROW]: reject_reason(reject) for reject in rejected}
            for (row, position), (runs, label) in zip(here.items(), shown, strict=True):
                reason = ("", "") if runs else reasons.get(position, FILTERED)
                noted = tuple(notes.get(position, ())) if runs else ()
                yield ShownRow(row, chunk.split, place(position), runs, *reason, label, noted)
        first += len(positions)
        if wanted and wanted[-1] < first:
            return
    if rows is not None and wanted:
        raise ConfigError.at("--row", f"{wanted[-1]} is out of range: the dataset has {first} rows, 0 to {first - 1}")


def _tokens(config: PipelineConfig, heads: Sequence[pa.Table], inference: bool, images: SourceImages) -> Show:
    engine = PromptEngine(config, heads) if config.media is None else ImageEngine(config, heads, images)
    expanded = engine.tokenizer.images(config)
    ids = [] if expanded is None else expanded.ids
    decoder = Decoder(engine.tokenizer.files[TOKENIZER], engine.tokenizer.control, ids)
    noted = _border_notes(config, heads, engine.tokenizer, images)

    def show(table: pa.Table, positions: Sequence[int], place: Place) -> Any:
        rows = table if engine.whole_chunks else _only(table, positions)
        if not inference:
            made, gaps = engine.encode_with_gaps(rows)
            notes = noted(rows)
            return [decoder.sequences(made, position, gaps, place) for position in positions], engine.rejects, notes
        prompts = engine.prompt_only(rows)
        return [(decoder.prompt(prompts, position), None) for position in positions], engine.rejects, {}

    return show


def _border_notes(
    config: PipelineConfig, heads: Sequence[pa.Table], spec: TokenizerSpec, images: SourceImages
) -> Callable[[pa.Table], dict[int, list[str]]]:
    """Return a function from raw rows to the `notes` of their `ShownRow`s, by position."""
    mapping = resolve(config, merge([sketch(head) for head in heads]))
    read, keep = mapping.to_json(), config.tokenizer.control_tokens_in_content == "keep"
    spaced = is_chat(config, read, spec) and ends_before_space(chat_format(config, spec))
    render, encoder = renderer(config, read, spec), ContentEncoder(spec.files[TOKENIZER], spec.control, keep)
    canonical = _canonical(config, mapping, images)

    def notes(rows: pa.Table) -> dict[int, list[str]]:
        prompts = render(canonical(rows).table).table
        found = [border_notes(side, encoder, spaced) for side in sides(prompts).values()]
        return {row: [note for side in found for note in side.get(row, ())] for row in {*chain(*found)}}

    return notes


def _canonical(config: PipelineConfig, mapping: ColumnMapping, images: SourceImages) -> Step:
    """Return the function from raw rows to canonical ones, with their images."""

    canonical: Step = partial(to_canonical, mapping=mapping)
    return canonical if config.media is None else images.into(canonical)


def _texts(config: PipelineConfig, heads: Sequence[pa.Table]) -> Show:
    mapping = resolve(config, merge([sketch(head) for head in heads]))
    render = renderer(config, mapping.to_json(), resolve_tokenizer(config))

    def show(table: pa.Table, positions: Sequence[int], place: Place) -> Any:
        rows = to_canonical(_only(table, positions), mapping)
        rendered = render(rows.table)
        shown: list[Shown] = []
        for position in positions:
            row = sides(rendered.table.filter(pc.equal(rendered.table[ROW], position)))
            shown.append(({side: tuple(text_runs(texts)) for side, texts in row.items() if texts.num_rows}, None))
        return shown, join_rejects([rows.rejects, rendered.rejects]), {}

    return show


def _only(table: pa.Table, positions: Sequence[int]) -> pa.Table:
    return table.filter(pc.is_in(table[ROW], pa.array(positions, pa.int32()))).combine_chunks()


TRIED = (4, 32, 256)
"""Numbers of rows that are rendered in turn, until one of them is not rejected."""

LONGEST = 1200
"""Characters shown of consecutive text of one kind."""


def rendered_row(config: PipelineConfig, build: Build) -> ShownRow | None:
    """Return the first row as `config` renders it, or None if the first rows are all rejected.

    Args:
        config: the dataset's declaration.
        build: a build whose stages `raw` and `schema` have run.

    Raises:
        ConfigError: the declaration does not fit the rows.
    """
    mapping = resolve(config, build.manifest(SCHEMA).facts["columns"])
    chunk = next(build.input_chunks(RAW))
    spec = resolve_tokenizer(config)
    rows, render = chunk.load(), renderer(config, mapping.to_json(), spec)
    canonical = _canonical(config, mapping, images := SourceImages(config, build.store.media))
    images.open(chunk, ChunkOutput(rows, len(rows)))
    # Rendering is slow, and the first rows are mostly fine: more are tried only while all so far are rejected.
    tried = (render(canonical(rows.slice(0, count)).table).table.slice(0, 1) for count in TRIED)
    rendered = next((table for table in tried if table.num_rows), None)
    if rendered is None:
        return None
    (position,) = rendered[ROW].to_pylist()
    runs_of = Decoder(spec.files[TOKENIZER], spec.control).documents if mapping.form == "tokens" else text_runs
    runs = {side: tuple(map(_shortened, runs_of(table))) for side, table in sides(rendered).items()}
    return ShownRow(position, chunk.split, build.manifest(RAW).chunks[0].place(position), runs)


def _shortened(run: TokenRun) -> TokenRun:
    return run if len(run.text) <= LONGEST else replace(run, text=f"{run.text[:LONGEST]} …")
