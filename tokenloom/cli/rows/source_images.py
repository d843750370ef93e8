"""Images of rows straight from the source: measured where they are, and stored nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tokenloom.assets.building.on_the_fly import PromptEngine, Step
from tokenloom.assets.prompts.image_spans import Illustrated
from tokenloom.assets.prompts.inference import ChatPrompts
from tokenloom.assets.stage.definition import ChunkOutput, InputChunk
from tokenloom.assets.stage.rejects import join_rejects
from tokenloom.assets.tokens.stage import tokenize
from tokenloom.config import PipelineConfig
from tokenloom.errors import StoreError
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.store.manifest_chunks import Run
from tokenloom.resources.store.objects import MEDIA, MediaStore

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
        content = self._in_rows.get(digest) or self._held.get(digest)
        if content is None and self._stored is not None:
            return self._stored.read(digest)
        if content is None:
            raise StoreError(f"image {digest} is not held")
        return content

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
