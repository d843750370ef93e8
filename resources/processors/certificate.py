"""Checks that images are expanded, and model inputs combined, as a processor's own call does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tokenloom.resources.exceptions import first_line
from tokenloom.resources.processors.features import RULES, Array, image_inputs, rules_that_hold
from tokenloom.resources.processors.loading import ProcessorError

Sizes = tuple[tuple[int, int], ...]
"""Widths and heights."""

SINGLE: Sizes = ((4000, 300), (300, 1001), (1, 1), (13, 17), (337, 335), (1024, 768), (29, 450), (640, 641))
"""Sizes of images that are alone in their row."""

BATCHES: tuple[tuple[Sizes, ...], ...] = (
    (((64, 48),), ((640, 480), (37, 91)), ((1, 2), (336, 336), (500, 60))),
    ((), ((300, 150), (300, 150)), (), ((28, 600),)),
)
"""Rows of batches whose model inputs are combined."""

TEXTS = ("", "Look: ", "\n", " and\n\n", "word", "<", " \t", "\n\n\nIs it a cat? ", "Grüße, ", "  ")
"""Pieces of text around images, taken in turn; images without text between them are adjacent."""


@dataclass(frozen=True)
class Expansion:
    """What replaces the token of one image.

    Args:
        ids: int32, token ids, starting and ending with special tokens.
        patches: image patches that the vision tower sees, for a budget. The rows of `pixel_values` if it has patches as
            rows, padding included; otherwise crops times height times width divided by 14 times 14.
    """

    ids: npt.NDArray[np.int32]
    patches: int


@dataclass(frozen=True)
class Certificate:
    """What `Processor.certify` found, to be stored with the versions of transformers and of the processor's files.

    Args:
        rules: how each model input of a batch is combined, a name from `features.RULES`.
        type_ids: names of the per-token outputs that tell image tokens from text, such as `mm_token_type_ids`.
        by_count: whether images in rows with several images are expanded differently from single ones.
    """

    rules: dict[str, str]
    type_ids: tuple[str, ...] = ()
    by_count: bool = False


class Checked(Protocol):
    """What is checked of a processor; see `Processor`."""

    loaded: Any

    @property
    def name(self) -> str: ...
    @property
    def marker(self) -> str: ...
    @property
    def image_token(self) -> str: ...
    @property
    def image_token_id(self) -> int: ...
    @property
    def image_token_ids(self) -> list[int]: ...

    def expand(self, width: int, height: int, several: bool) -> Expansion: ...
    def inputs_of(self, image: Any, several: bool) -> dict[str, Array]: ...
    def call(self, texts: list[str], rows: list[list[Any]], **options: Any) -> Any: ...


def certify(processor: Checked) -> Certificate:
    """Compare a processor's ids, type ids and model inputs with its own calls. See `Processor.certify`."""
    pictures = np.random.default_rng(0)
    by_count = any(_by_count(processor, *size) for size in SINGLE)
    types: list[tuple[str, ...]] = []
    for number, size in enumerate(SINGLE):
        probe = _probe(processor, [[size]], number, pictures, do_rescale=False, do_normalize=False)
        types.append(probe.checked(by_count))
    batches = [_probe(processor, batch, number, pictures) for number, batch in enumerate(BATCHES)]
    types += [batch.checked(by_count) for batch in batches]
    if len(set(types)) > 1:
        raise ProcessorError(f"{processor.name} returns type ids for some texts and not for others")
    return Certificate(_rules(processor, batches, by_count), types[0], by_count)


def _by_count(processor: Checked, width: int, height: int) -> bool:
    alone, together = (processor.expand(width, height, several) for several in (False, True))
    return alone.patches != together.patches or not np.array_equal(alone.ids, together.ids)


class _Probe:
    """Rows of texts and images, and what the processor returns for them.

    Args:
        processor: the processor.
        texts: a text per row, with `marker` for each image.
        images: the images of each row.
        output: what the processor returns for the rows.
    """

    def __init__(self, processor: Checked, texts: list[str], images: list[list[Any]], output: Any) -> None:
        self.processor, self.texts, self.images, self.output = processor, texts, images, output

    def checked(self, by_count: bool) -> tuple[str, ...]:
        """Check the ids and type ids, and return the names of the type ids."""
        self._check_ids(by_count)
        return self._type_ids()

    def _check_ids(self, by_count: bool) -> None:
        for row, (text, images) in enumerate(zip(self.texts, self.images, strict=True)):
            sizes = [image.size for image in images]
            made = expanded(self.processor, text, sizes, by_count and len(images) > 1)
            if made != list(self.output["input_ids"][row]):
                raise ProcessorError(
                    f"{self.processor.name} cannot be used: for images of {_written(sizes)} pixels, it returns other "
                    "token ids than a text in which each image token is expanded where it is"
                )

    def _type_ids(self) -> tuple[str, ...]:
        """Return the names of outputs that are 1 for image tokens and 0 elsewhere."""
        processor = self.processor
        own = processor.loaded.tokenizer("a", add_special_tokens=False)
        names = [name for name in ("mm_token_type_ids", "token_type_ids") if name in self.output and name not in own]
        for name in names:
            for ids, types in zip(self.output["input_ids"], self.output[name], strict=True):
                if not np.array_equal(np.isin(ids, processor.image_token_ids).astype(int), types):
                    raise ProcessorError(f"{processor.name} cannot be used: its {name} differ from the image tokens")
        return tuple(names)


def _probe(processor: Checked, sizes: Any, number: int, pictures: np.random.Generator, **options: Any) -> _Probe:
    from PIL import Image

    rows = [
        [Image.fromarray(pictures.integers(0, 256, (height, width, 3), np.uint8)) for width, height in row]
        for row in sizes
    ]
    texts, own = [], []
    for row, images in enumerate(rows):
        pieces = [TEXTS[(3 * number + 2 * row + place) % len(TEXTS)] for place in range(len(images) + 1)]
        if number % 2:
            pieces[1:-1] = [""] * (len(images) - 1)
        if not images:
            pieces = ["a text only"]
        texts.append(processor.marker.join(pieces))
        own.append(processor.image_token.join(pieces))
    try:
        return _Probe(processor, texts, rows, processor.call(own, rows, **options))
    except Exception as error:
        raise ProcessorError(
            f"{processor.name} cannot be used: it rejects a row with images: {first_line(error)}"
        ) from error


def expanded(processor: Checked, text: str, sizes: list[tuple[int, int]], several: bool) -> list[int]:
    """Return the ids of a text with a `marker` for each image, with each image token replaced by its expansion."""
    ids = np.array(processor.loaded.tokenizer(text, add_special_tokens=False)["input_ids"], np.int64)
    places = np.flatnonzero(ids == processor.image_token_id)
    if len(places) != len(sizes):
        return []
    parts: list[Any] = []
    start = 0
    for place, (width, height) in zip(places, sizes, strict=True):
        parts += [ids[start:place], processor.expand(width, height, several).ids]
        start = place + 1
    return np.concatenate([*parts, ids[start:]]).tolist()


def _rules(processor: Checked, batches: list[_Probe], by_count: bool) -> dict[str, str]:
    """Return the first rule for each model input that holds in all batches."""
    holding: dict[str, list[str]] = {}
    for batch in batches:
        try:
            expected = image_inputs(batch.output, processor.loaded.unused_input_names)
        except ValueError as error:
            message = f"{processor.name} cannot be used: model inputs of several images differ in shape"
            raise ProcessorError(message) from error
        rows = [
            [processor.inputs_of(image, by_count and len(images) > 1) for image in images] for images in batch.images
        ]
        for name, array in expected.items():
            parts = [[{name: image[name]} for image in row] for row in rows]
            holding[name] = rules_that_hold(parts, {name: array}, holding.get(name, list(RULES)))
            if not holding[name]:
                raise ProcessorError(
                    f"{processor.name} cannot be used: {name} of a batch is not made of single images'"
                )
    return {name: rules[0] for name, rules in holding.items()}


def _written(sizes: list[tuple[int, int]]) -> str:
    return ", ".join(f"{width}x{height}" for width, height in sizes)
