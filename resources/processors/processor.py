"""An image processor as the pipeline uses it: what an image becomes in tokens, and what the model takes for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from tokenloom.resources.exceptions import first_line
from tokenloom.resources.processors.certificate import Certificate, Expansion, certify
from tokenloom.resources.processors.families import Family, family
from tokenloom.resources.processors.features import Array, combine, image_inputs
from tokenloom.resources.processors.loading import PROCESSOR_FILES, ProcessorError, load_processor, model_type
from tokenloom.resources.processors.shape_only import black, shape_only

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["PROCESSOR_FILES", "Certificate", "Expansion", "Processor", "ProcessorError"]

MOST_PIXELS = 178_956_970
"""Largest image, in pixels; Pillow decodes no larger ones."""

FIRST_SIZE = (64, 48)
"""Width and height of the image whose expansion shows what text is around it."""

CELL = 14
"""Side, in pixels, of the patches that images which a processor does not cut into patches are counted in."""

CACHED = 4096
"""Expansions kept, the last ones used."""


@dataclass(eq=False)
class Processor:
    """A processor of transformers for images.

    Args:
        loaded: the transformers processor.
        model_type: `model_type` of the model's configuration, if known.
        certificate: result of `certify`, from an earlier call or another process; None to compute it when needed.
        folder: where it was loaded from. Pickling keeps this and the certificate: the folder is read again.
    """

    loaded: Any
    model_type: str | None = None
    certificate: Certificate | None = None
    folder: Path | None = None

    @classmethod
    def load(cls, folder: Path, certificate: Certificate | None = None) -> Processor:
        """Load the processor of a folder that has its files and the tokenizer's. Nothing is downloaded.

        Raises:
            ProcessorError: it cannot be loaded or is not for images.
        """
        return cls(load_processor(folder), model_type(folder), certificate, folder)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.folder is None:
            raise TypeError("only a processor that was loaded from a folder can be pickled")
        return Processor.load, (self.folder, self.certificate)

    @property
    def name(self) -> str:
        """Name of the processor's class."""
        return type(self.loaded).__name__

    @property
    def family(self) -> Family:
        """What is known of the models that the processor belongs to."""
        return family(self.name, self.model_type)

    @cached_property
    def image_token(self) -> str:
        """The special token that stands for one image in a text."""
        token = getattr(self.loaded, "image_token", None)
        if not isinstance(token, str) or self._tokens(token) != [self.loaded.tokenizer.convert_tokens_to_ids(token)]:
            raise ProcessorError(f"{self.name} has no special token that marks an image in a text")
        return token

    @cached_property
    def image_token_id(self) -> int:
        """The id of `image_token`."""
        return int(self.loaded.tokenizer.convert_tokens_to_ids(self.image_token))

    @cached_property
    def image_token_ids(self) -> list[int]:
        """Ids that count as image in type ids."""
        return [int(number) for number in self.loaded.image_token_ids if number is not None]

    @property
    def before(self) -> str:
        """Text that the processor writes before an image, to be tokenized with the text before it."""
        return self._around[0]

    @property
    def after(self) -> str:
        """Text that the processor writes after an image, to be tokenized with the text after it."""
        return self._around[1]

    @property
    def marker(self) -> str:
        """What a text has for one image before it is tokenized: `before`, the image token, `after`."""
        return self.before + self.image_token + self.after

    @cached_property
    def certified(self) -> Certificate:
        """The certificate; computed by `certify` if none was given."""
        if self.certificate is None:
            self.certify()
        return cast(Certificate, self.certificate)

    def certify(self) -> Certificate:
        """Compare this class with the processor's own calls on rows of many images and sizes, and keep the result.

        Raises:
            ProcessorError: something differs, so that the processor cannot be used.
        """
        self.certificate = certify(cast(Any, self))
        return self.certificate

    def expansion(self, width: int, height: int, images: int = 1) -> Expansion:
        """Return what replaces the image token of an image.

        Args:
            width: in pixels, after any rotation by EXIF.
            height: in pixels.
            images: number of images in the image's row (its conversation, not the sequence that it is packed into).

        Raises:
            ProcessorError: the processor rejects the size, or writes a text around it that depends on the size.
        """
        return self._expansions(int(width), int(height), images > 1 and self.certified.by_count)

    def patches(self, width: int, height: int, images: int = 1) -> int:
        """Return the patches that the vision tower sees of an image; see `Expansion.patches`."""
        return self.expansion(width, height, images).patches

    def features(self, image: Image, images: int = 1) -> dict[str, Array]:
        """Compute the model inputs of one image.

        Args:
            image: an RGB image.
            images: number of images in the image's row.

        Raises:
            ProcessorError: the processor rejects the image.
        """
        return self.inputs_of(image, images > 1 and self.certified.by_count)

    def combined(self, rows: Sequence[Sequence[dict[str, Array]]]) -> dict[str, Array]:
        """Combine the features of single images to the model inputs of a batch.

        Args:
            rows: features of the images of each row. In a batch of packed sequences, a row is still one conversation.

        Returns:
            The inputs, bit for bit as the processor's own call returns them; empty if no row has an image: models then
            take no image inputs at all.
        """
        return combine([list(row) for row in rows], self.certified.rules)

    def token_types(self, ids: npt.ArrayLike) -> dict[str, npt.NDArray[np.int64]]:
        """Return the per-token type ids that the processor returns with token ids of any shape; empty if none."""
        if not self.certified.type_ids:
            return {}
        types = np.isin(np.asarray(ids), self.image_token_ids).astype(np.int64)
        return dict.fromkeys(self.certified.type_ids, types)

    # What follows is for `certificate` as well: it needs no certificate.

    def expand(self, width: int, height: int, several: bool) -> Expansion:
        """Return an expansion, for a row with one image or with several; see `expansion`."""
        return self._expansions(width, height, several)

    def call(self, texts: list[str], rows: list[list[Any]], **options: Any) -> Any:
        """Call the processor itself on texts with image tokens and their images, without adding special tokens."""
        some: dict[str, Any] = {"images": rows} if any(rows) else {}
        return self.loaded(text=list(texts), **some, add_special_tokens=False, padding=False, **options)

    def inputs_of(self, image: Any, several: bool) -> dict[str, Array]:
        """Compute the model inputs of an image, in a row with one image or with several; see `features`."""
        row = [image]
        if several:
            row.append(np.zeros((FIRST_SIZE[1], FIRST_SIZE[0], 3), np.uint8))
        try:
            inputs = image_inputs(self.call([self.image_token * len(row)], [row]), self.loaded.unused_input_names)
        except ValueError as error:
            raise ProcessorError(f"{self.name} rejects an image: {first_line(error)}") from error
        if several:
            return {name: array[:1] if len(array) == len(row) else array for name, array in inputs.items()}
        return inputs

    @cached_property
    def _expansions(self) -> Any:
        return lru_cache(CACHED)(self._expand)

    def _expand(self, width: int, height: int, several: bool) -> Expansion:
        written, patches = self._replacement(width, height, several)
        before, core, after = self._split(written)
        if (before, after) != self._around:
            raise ProcessorError(
                f"{self.name} cannot be used: it writes {before!r} before and {after!r} after an image of "
                f"{width}x{height} pixels, but {self.before!r} and {self.after!r} around one of "
                f"{FIRST_SIZE[0]}x{FIRST_SIZE[1]}; use settings with which this text is the same for all sizes"
            )
        return Expansion(self._core_ids(core), patches)

    def _replacement(self, width: int, height: int, several: bool) -> tuple[str, int]:
        """Return the text that replaces the token of an image, and its number of patches."""
        if width < 1 or height < 1 or width * height > MOST_PIXELS:
            raise ProcessorError(f"an image of {width}x{height} pixels is empty or has more than {MOST_PIXELS} pixels")
        try:
            inputs, texts = self._processed(black(height, width, 1), several)
        except Exception:  # some processors only take colours
            try:
                inputs, texts = self._processed(black(height, width), several)
            except Exception as error:
                message = f"{self.name} rejects an image of {width}x{height} pixels: {first_line(error)}"
                raise ProcessorError(message) from error
        if not texts:
            raise ProcessorError(f"{self.name} does not report how it expands image tokens")
        return texts[0], _patches(inputs["pixel_values"]) // (1 + several)

    def _processed(self, image: Array, several: bool) -> tuple[Any, list[str]]:
        """Return the model inputs of a black image, and the text that replaces its token."""
        with np.errstate(all="ignore"):
            return self._shapes._process_images([[image, image] if several else [image]], **self._options)

    @cached_property
    def _shapes(self) -> Any:
        return shape_only(self.loaded)

    @cached_property
    def _options(self) -> dict[str, Any]:
        """Options of the image processor, without work on pixels that no expansion depends on."""
        merged = self.loaded._merge_kwargs(tokenizer_init_kwargs=self.loaded.tokenizer.init_kwargs)
        options = {name: value for name, value in merged["images_kwargs"].items() if name != "return_tensors"}
        return {**options, "do_rescale": False, "do_normalize": False, "resample": 0}

    @cached_property
    def _around(self) -> tuple[str, str]:
        before, _, after = self._split(self._replacement(*FIRST_SIZE, several=False)[0])
        return before, after

    @cached_property
    def _special(self) -> re.Pattern[str]:
        """Special tokens, the longest first."""
        added = self.loaded.tokenizer.added_tokens_decoder.values()
        names = sorted((token.content for token in added if not token.normalized), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or r"(?!)")

    @cached_property
    def _repeated(self) -> re.Pattern[str]:
        """A run of one token that counts as image."""
        names = self.loaded.tokenizer.convert_ids_to_tokens(self.image_token_ids)
        return re.compile("|".join(f"(?:{re.escape(name)})+" for name in sorted(names, key=len, reverse=True)))

    def _split(self, written: str) -> tuple[str, str, str]:
        """Split a replacement into text, what starts and ends with special tokens, and text."""
        found = [match.span() for match in self._special.finditer(written)]
        if not found:
            raise ProcessorError(f"{self.name} expands an image to text without special tokens")
        start, stop = found[0][0], found[-1][1]
        return written[:start], written[start:stop], written[stop:]

    def _core_ids(self, core: str) -> npt.NDArray[np.int32]:
        """Tokenize what starts and ends with special tokens: with one token for each run of image tokens."""
        lengths: list[int] = []

        def shortened(run: re.Match[str]) -> str:
            name = next(name for name in self._names if run.group().startswith(name))
            lengths.append(len(run.group()) // len(name))
            return name

        ids = np.array(self._tokens(self._repeated.sub(shortened, core)), np.int32)
        times = np.ones(len(ids), np.int64)
        places = np.flatnonzero(np.isin(ids, self.image_token_ids))
        if len(places) != len(lengths):
            raise ProcessorError(f"{self.name} expands an image to tokens that the tokenizer does not know")
        times[places] = lengths
        expanded = np.repeat(ids, times)
        expanded.flags.writeable = False
        return expanded

    @cached_property
    def _names(self) -> list[str]:
        return sorted(self.loaded.tokenizer.convert_ids_to_tokens(self.image_token_ids), key=len, reverse=True)

    def _tokens(self, text: str) -> list[int]:
        return self.loaded.tokenizer(text, add_special_tokens=False)["input_ids"]


def _patches(pixels: Any) -> int:
    """Count the patches of pixel inputs: rows of patches, or crops of 1 or 3 channels in cells of 14 times 14."""
    shape: list[int] = []
    while isinstance(pixels, list | tuple):
        shape.append(len(pixels))
        pixels = pixels[0]
    shape += pixels.shape
    if len(shape) >= 4 and shape[-3] in (1, 3):
        return int(-(-np.prod(shape, dtype=np.int64) // (shape[-3] * CELL * CELL)))
    return int(np.prod(shape[:-1], dtype=np.int64))
