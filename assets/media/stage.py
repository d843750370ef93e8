"""media: canonical rows with their images in the store, each checked and measured.

The key of a chunk holds the digests of the files that its rows name, so that an edit of one image recomputes one chunk.
The content of an image is read only to compute a chunk; its size is in the header, and its pixels are decoded once, to
see that they can be.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from tokenloom.assets.media.places import KnownImages, Places, UnusableImage, read_image
from tokenloom.assets.stage.definition import ChunkOutput, Context, InputChunk, Stage, Work, settings
from tokenloom.assets.stage.images import IMAGE, IMAGES_COLUMN, IMAGES_OF_ROW, REFERENCES_COLUMN, ROLE
from tokenloom.assets.stage.names import COLUMNS
from tokenloom.assets.stage.names import MEDIA as MEDIA_STAGE
from tokenloom.assets.stage.rejects import ROW, join_rejects, reject_rows
from tokenloom.config import PipelineConfig
from tokenloom.errors import SourceError
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.images.image_file import ImageProblem, check, read_facts
from tokenloom.resources.store import Manifest
from tokenloom.resources.store.manifest_chunks import Run
from tokenloom.resources.store.objects import IMAGES, media_of
from tokenloom.resources.tables.ragged import any_of, list_array, list_parts, one_array, row_of

IMAGE_BYTES, SHARED, ANIMATED = "image_bytes", "images_shared", "images_animated"
"""Counters: bytes of different images, images of rows beyond these, and images with frames that are not used. Images
that several chunks have are counted in each."""

DIFFERENT = "different_images"
"""Note: the number of different images of all chunks."""


class Reference(NamedTuple):
    """An image that a row refers to: its digest or else its path or URL, and the row's source file."""

    media: str | None
    path: str | None
    source: str


class Measured(NamedTuple):
    """An image in the store, as `IMAGE` has it, and its number of frames."""

    media: str
    format: str
    width: int
    height: int
    bytes: int
    frames: int = 1


class Refused(NamedTuple):
    """Why an image cannot be used: the code and message of the reject."""

    code: str
    message: str


Found = Mapping[Reference, Measured | Refused]
States = Mapping[tuple[str, str], tuple[str, str] | Refused]
"""The place and the digest of each image that rows name, or why it cannot be used, by name and source."""


class Media(Protocol):
    """Images by the digest of their bytes, as `MediaStore` has them."""

    def put_all(self, contents: Mapping[str, bytes]) -> None: ...
    def missing(self, digests: Iterable[str]) -> set[str]: ...
    def read(self, digest: str) -> bytes: ...


@dataclass(frozen=True)
class Loader:
    """Loads a chunk of rows with what is known of their images, whose bytes it stores. It can be pickled.

    Args:
        load: returns the rows.
        media: where the images go.
        runs: which rows come from which source.
        states: what was found out about each image that is not in the rows.
        max_pixels: the most that an image can have.
    """

    load: Callable[[], pa.Table]
    media: Media
    runs: tuple[Run, ...]
    states: States
    max_pixels: int

    def __call__(self) -> tuple[pa.Table, list[Reference], Found]:
        table = self.load()
        named = references(table, self.runs)
        return table, named, {reference: self._found(reference) for reference in dict.fromkeys(named)}

    def _found(self, reference: Reference) -> Measured | Refused:
        state = self.states.get((reference.path or "", reference.source)) if reference.media is None else None
        if isinstance(state, Refused):
            return Refused(state.code, f"{_shown(reference)}: {state.message}")
        try:
            digest, content = self._named(reference.media) if state is None else self._read(reference, *state)
            facts = read_facts(content, self.max_pixels)
            check(content, facts)
        except (UnusableImage, ImageProblem) as error:
            return Refused(error.code, f"{_shown(reference)}: {error}")
        if reference.media is None:
            self.media.put_all({digest: content})
        return Measured(digest, facts.format, facts.width, facts.height, len(content), facts.frames)

    def _named(self, digest: str | None) -> tuple[str, bytes]:
        if digest is None or self.media.missing([digest]):  # the data themselves hold a digest
            raise UnusableImage("image_missing", "its digest is not that of an image of the store")
        return digest, self.media.read(digest)

    def _read(self, reference: Reference, address: str, digest: str) -> tuple[str, bytes]:
        """Return the digest and bytes of a file or address; raise SourceError if they are not those in the chunk's
        key."""
        if "://" in address and not self.media.missing([digest]):
            return digest, self.media.read(digest)
        try:
            content = read_image(address)
        except UnusableImage:
            content = b""
        if digest_bytes(content) != digest:
            raise SourceError(f"{_shown(reference)}: the image changed while the build read it; build again")
        return digest, content


def _shown(reference: Reference) -> str:
    return (reference.path or "an image in the row")[:200]


def references(table: pa.Table, runs: tuple[Run, ...]) -> list[Reference]:
    """Return the image of each mark, of all rows in order."""
    offsets, flat = list_parts(table[REFERENCES_COLUMN])
    media, path = (values.to_pylist() for values in flat.flatten())
    rows = table[ROW].to_numpy()[row_of(np.diff(offsets))]
    run_of = np.searchsorted([run.first for run in runs], rows, side="right") - 1
    return [
        Reference(None, path, runs[run].source) if media is None else Reference(media, None, "")
        for media, path, run in zip(media, path, run_of.tolist(), strict=True)
    ]


def with_images(table: pa.Table, named: Sequence[Reference], found: Found) -> ChunkOutput:
    """Return rows with their images in place of references to them.

    Args:
        table: canonical rows with `REFERENCES_COLUMN`.
        named: the image of each mark, of all rows in order.
        found: what is known of each image. Rows with one that cannot be used are rejected.
    """
    offsets, _ = list_parts(table[REFERENCES_COLUMN])
    lengths, answers = np.diff(offsets), [found[reference] for reference in named]
    rejects, rejected = list[pa.Table](), np.zeros(table.num_rows, bool)
    for reason in {answer: None for answer in answers if isinstance(answer, Refused)}:
        flags = any_of(np.array([answer == reason for answer in answers], bool), lengths) & ~rejected
        rejected |= flags
        rows = one_array(table[ROW]).filter(pa.array(flags))
        rejects.append(reject_rows(rows, MEDIA_STAGE, reason.code, ROLE, reason.message, [""] * len(rows)))
    measured = [answer[: len(IMAGE)] if isinstance(answer, Measured) else (None,) * len(IMAGE) for answer in answers]
    columns = list(zip(*measured, strict=True)) or [()] * len(IMAGE)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, IMAGE, strict=True)]
    lists = list_array(offsets, pa.StructArray.from_arrays(arrays, fields=list(IMAGE))).cast(IMAGES_OF_ROW)
    out = table.drop_columns([REFERENCES_COLUMN]).append_column(IMAGES_COLUMN, lists)
    out = out.filter(pa.array(~rejected)).combine_chunks()
    used = media_of(out)
    different = {answer.media: answer for answer in answers if isinstance(answer, Measured) and answer.media in used}
    counters = {
        IMAGES: len(different),
        IMAGE_BYTES: sum(answer.bytes for answer in different.values()),
        SHARED: len(list_parts(out[IMAGES_COLUMN])[1]) - len(different),
        ANIMATED: sum(answer.frames > 1 for answer in different.values()),
    }
    counters = {name: count for name, count in counters.items() if count}
    return ChunkOutput(out, table.num_rows, join_rejects(rejects), counters=counters)


class MediaStage(Stage):
    name = MEDIA_STAGE
    description = "The rows with their images, which are kept once each."
    version = 2
    upstream = (COLUMNS,)
    replaces = COLUMNS
    libraries = ("pyarrow", "numpy", "pillow")
    reads = (
        settings("dataset.media", "max_pixels"),
        settings("dataset.media", "folder", "allow_urls", where="later"),
    )
    droppable = True
    remedies: ClassVar = {
        "image_damaged": "replace the file",
        "image_empty": "remove the image",
        "image_missing": "check the path; it is relative to dataset.media.folder, by default the folder of the source",
        "image_outside": "set dataset.media.folder to a folder that has it",
        "image_refused": "add the host to dataset.media.allow_urls, or download the images",
        "image_too_large": "make it smaller, or raise dataset.media.max_pixels",
        "not_an_image": "use JPEG, PNG, WebP, GIF, BMP, TIFF or PPM",
    }

    def prepare(self, context: Context) -> Work:
        config = context.config
        places, known = Places.of(config), KnownImages(context.store, [config.dataset_name, config.folder])
        loader = partial(Loader, media=context.store.media, max_pixels=config.dataset.media.max_pixels)
        seen: set[str] = set()
        chunks = _chunks(context, places, known, loader, seen)
        return Work(chunks, lambda loaded: with_images(*loaded), notes=lambda: {DIFFERENT: len(seen)})

    def notices(self, context: Context, manifest: Manifest) -> list[str]:
        animated = manifest.counters.get(ANIMATED, 0)
        return [f"{animated:,} images are animated; only their first frame is used"] if animated else []

    def shown(self, config: PipelineConfig, manifest: Manifest, first: pa.Table) -> dict[str, Any]:
        animated = {ANIMATED: manifest.counters.get(ANIMATED, 0)}
        return {**self.summary(config, manifest), **animated, **super().shown(config, manifest, first)}

    def summary(self, config: PipelineConfig, manifest: Manifest) -> dict[str, Any]:
        """Return the number of different images, the sum of their bytes, and the number of further uses of them. The
        sum is too large if several chunks have the same image."""
        counted, repeated, size = (manifest.counters.get(name, 0) for name in (IMAGES, SHARED, IMAGE_BYTES))
        images = min(counted, manifest.notes.get(DIFFERENT, counted))
        return {IMAGES: images, IMAGE_BYTES: size, SHARED: counted + repeated - images}


STAGE = MediaStage()


def find_images(named: Iterable[tuple[str, str]], places: Places, digest: Callable[[str], str]) -> States:
    """Find images by their names and sources.

    Args:
        digest: returns the digest of the bytes at a place.
    """
    states: dict[tuple[str, str], tuple[str, str] | Refused] = {}
    for name, source in named:
        try:
            address = places.find(name, source)
            states[name, source] = address, digest(address)
        except UnusableImage as error:
            states[name, source] = Refused(error.code, str(error))
    return states


def _chunks(
    context: Context, places: Places, known: KnownImages, loader: Callable[..., Loader], seen: set[str]
) -> Iterator[InputChunk]:
    """Yield the chunks of canonical rows; their digests cover the files and addresses that the rows name. `seen` gets
    the start of the digest of each image."""
    above = STAGE.above(context.config)[0]
    for chunk in context.input_chunks(above):

        def find(chunk: InputChunk = chunk) -> Iterator[tuple[str, str]]:
            context.ensure(above, [chunk.digest])
            for media, path, source in dict.fromkeys(references(chunk.load(), chunk.runs)):
                yield (media or path or "", source)

        named = known.named(digest_json([chunk.digest, chunk.runs]), find)
        states = find_images((pair for pair in named if pair[1]), places, known.digest)
        # 64 bits tell images apart, and keep the set small
        seen.update(name[:16] for name, source in named if not source)
        seen.update(state[1][:16] for state in states.values() if not isinstance(state, Refused))
        parts = [[name, *(state if isinstance(state, Refused) else state[1:])] for (name, _), state in states.items()]
        # rows without images outside of the store depend on nothing else
        digest = digest_json([chunk.digest, parts]) if states else chunk.digest
        yield chunk.loading(loader(load=chunk.load, runs=chunk.runs, states=states), digest)
    known.save()


def probe() -> list[pa.Table]:
    """Return what is found out about small images of each format."""
    facts = []
    for content in fixed_images():
        found = read_facts(content)
        check(content, found)
        facts.append(Measured(digest_bytes(content), found.format, found.width, found.height, len(content))[1:4])
    return [pa.table(dict(zip(("format", "width", "height"), map(list, zip(*facts, strict=True)), strict=True)))]


def fixed_images() -> Iterator[bytes]:
    """Yield a small image of each format, and a photo that is stored on its side."""
    from PIL import Image

    picture = Image.frombytes("RGB", (7, 5), bytes(range(105)))
    rotated = Image.Exif()
    rotated[0x0112] = 6
    for name in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"):
        file = io.BytesIO()
        picture.save(file, name)
        yield file.getvalue()
    file = io.BytesIO()
    picture.save(file, "JPEG", exif=rotated)
    yield file.getvalue()
