"""An image processor as the pipeline uses it: loaded from a folder, what images become in tokens, what the model takes.

It is loaded with transformers, also where torchvision is not installed.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from inspect import signature
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tokenloom.resources.processors.features import Array, Levels, image_inputs
from tokenloom.resources.processors.pixels import decoders, pixels_digest
from tokenloom.resources.visible import causes, first_line

CERTIFICATE = "image_certificate.json"
"""The file with `ImageTokens` next to those of a tokenizer."""


@dataclass(frozen=True)
class ImageTokens:
    """What a certified processor makes of images.

    Args:
        processor: name of its class.
        image_processor: name of the class of its image processor, on which pixels depend.
        token, token_id: the special token that stands for one image in a text, and its id.
        ids: ids that count as image in type ids.
        before, after: text that belongs around the token of an image.
        rules: how each model input of a batch is combined.
        type_ids: names of the model inputs that tell image tokens from others.
        by_count: whether images in rows with several are expanded differently.
        packs: whether rows can be packed; else `reason` says why not.
        mrope: whether the model takes three position ids per token.
        merge: patches that one token stands for, per side, if `mrope`.
        expansions: digest of the tokens of images of some sizes.
        levels: the model inputs that are made and kept as bytes, and what the bytes stand for.
        pixels: digest of the pixels of some image files and of the model inputs made of them; "" if it is not known.
        decoders: the versions of the libraries that decoded and resized them.
    """

    processor: str
    image_processor: str
    token: str
    token_id: int
    ids: list[int]
    before: str
    after: str
    rules: dict[str, str]
    type_ids: list[str]
    by_count: bool
    packs: bool
    reason: str
    mrope: bool
    merge: int
    expansions: str
    levels: dict[str, Levels]
    pixels: str = ""
    decoders: str = ""

    def to_bytes(self) -> bytes:
        # Earlier certificates, which do not have the last fields, keep their bytes.
        values = {name: value for name, value in asdict(self).items() if value or name not in ("pixels", "decoders")}
        return json.dumps(values, sort_keys=True, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, content: bytes | str) -> ImageTokens:
        """Return what `to_bytes` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            values = json.loads(content)
            levels = {name: Levels(**written) for name, written in values.pop("levels").items()}
            return cls(**values, levels=levels)
        except (TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"{CERTIFICATE} is not a certificate: {error}") from error


PROCESSOR_FILES = (
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
)
"""Files of a processor, apart from the tokenizer's; a folder has some of them. `config.json` is the model's: it names
the model type, which tells apart models that share a processor class."""

CLASS_FILES = (*PROCESSOR_FILES[:3], "tokenizer_config.json")
"""Files that can name the processor's class, the most reliable first."""

IMAGE_METHODS = ("replace_image_token", "_process_images", "_merge_kwargs")
"""Methods of a transformers processor that expansions are computed with."""

_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


class ProcessorError(ValueError):
    """A processor that cannot be used, or an image size that it rejects. The text is one sentence."""


def load_processor(folder: Path) -> Any:
    """Load a transformers processor for images from a folder that has its files and the tokenizer's.

    Only local files are read and no code from the folder is run. Image processors use Pillow if they can, also where
    torchvision is installed: its pixels are a little different, and would depend on the machine. Without torchvision, a
    processor for images and videos is loaded without its video processor.

    Raises:
        ProcessorError: the files are missing or damaged, the processor is not known to transformers, is not for images,
            or needs a library that is not installed.
    """
    try:
        import PIL.Image  # noqa: F401
        import transformers
        from transformers.image_processing_backends import TorchvisionBackend
        from transformers.utils.import_utils import is_torchvision_available
    except ImportError:
        raise ProcessorError("processors need Pillow and transformers: `pip install tokenloom[vision]`") from None
    name, version = class_name(folder), transformers.__version__
    try:
        loaded: Any = getattr(transformers, name, None)
        if not hasattr(loaded, "get_attributes"):
            raise ProcessorError(
                f"{name} in {folder} is not a processor of transformers {version}; "
                "update transformers, or use a model whose processor is part of it (code from the hub is not run)"
            )
        parts = loaded.get_attributes()
        if "image_processor" not in parts:
            raise ProcessorError(
                f"{name} in {folder} does not process images; use the processor of an image-text model"
            )
        if not all(hasattr(loaded, method) for method in IMAGE_METHODS):
            raise ProcessorError(
                f"{name} of transformers {version} does not report how it expands image tokens; "
                "update transformers to 5.23 or later"
            )
        if "video_processor" in parts and not is_torchvision_available():
            loaded = _without_video(loaded)
        logging.getLogger("transformers.processing_utils").addFilter(_is_telling)
        processor = loaded.from_pretrained(str(folder), **_LOCAL)
        if isinstance(processor.image_processor, TorchvisionBackend):
            images = transformers.AutoImageProcessor.from_pretrained(str(folder), backend="pil", **_LOCAL)
            processor.image_processor = images
        return processor
    except ProcessorError:
        raise
    except Exception as error:
        missing = next((cause for cause in causes(error) if isinstance(cause, ImportError)), None)
        problem = "needs a library that is not installed" if missing else f"cannot be loaded from {folder}"
        reason = " ".join(str(missing or error).split()).partition(". ")[0].removesuffix(".")  # the first sentence
        raise ProcessorError(f"{name} {problem}: {reason or type(error).__name__}") from error


def class_name(folder: Path) -> str:
    """Return the name of the processor class that a folder's files name, or that belongs to its model type."""
    for file in CLASS_FILES:
        if name := _content(folder / file).get("processor_class"):
            return str(name)
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES  # pyright: ignore[reportPrivateImportUsage]

    if name := PROCESSOR_MAPPING_NAMES.get(model_type(folder) or ""):
        return str(name)
    raise ProcessorError(f"no file in {folder} names a processor class; add the model's preprocessor_config.json")


def model_type(folder: Path) -> str | None:
    """Return the `model_type` of a folder's `config.json`, or None if it has none."""
    kind = _content(folder / "config.json").get("model_type")
    return kind if isinstance(kind, str) else None


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise ProcessorError(f"{path} is not valid JSON: {first_line(error)}") from None
    return content if isinstance(content, dict) else {}


def _is_telling(record: logging.LogRecord) -> bool:
    """Return whether a message is not about the class that `_without_video` names."""
    return "NoVideoProcessor" not in record.getMessage()


def _without_video(loaded: Any) -> Any:
    """Return a subclass of a processor class that has no video processor, which only torchvision can run."""

    def found(name: str) -> Any:
        if name == "NoVideoProcessor":
            return SimpleNamespace(from_pretrained=lambda *_, **__: None)
        return loaded.get_possibly_dynamic_module(name)

    def checked(self: Any, name: str, argument: Any) -> Any:
        return None if argument is None else loaded.check_argument_for_proper_class(self, name, argument)

    changes = {"get_possibly_dynamic_module": staticmethod(found), "check_argument_for_proper_class": checked}
    own = {"__module__": loaded.__module__, "video_processor_class": "NoVideoProcessor"}
    return type(loaded.__name__, (loaded,), {**own, **changes})


MOST_PIXELS = 178_956_970
"""Largest image, in pixels; Pillow decodes no larger ones."""

FIRST_SIZE = (64, 48)
"""Width and height of the image whose expansion shows what text is around it."""

SINGLE = ((4000, 300), (300, 1001), (1, 1), (13, 17), (337, 335), (1024, 768), (29, 450), (640, 641))
"""Widths and heights of images whose expansions are checked."""

RAW = {"do_rescale": False, "do_normalize": False}
"""Options with which pixels stay bytes."""


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


@dataclass(eq=False)
class Processor:
    """A processor of transformers for images.

    Args:
        loaded: the transformers processor.
        model_type: `model_type` of the model's configuration, if known.
        certificate: what `certify` found, if known.
    """

    loaded: Any
    model_type: str | None = None
    certificate: ImageTokens | None = None

    @classmethod
    def load(cls, folder: Path, certificate: ImageTokens | None = None) -> Processor:
        """Load the processor of a folder that has its files and the tokenizer's. Nothing is downloaded.

        Raises:
            ProcessorError: it cannot be loaded or is not for images, or it makes other pixels than the certificate's.
        """
        loaded = load_processor(folder)
        kind = type(loaded.image_processor).__name__
        if certificate is not None and kind != certificate.image_processor:
            raise ProcessorError(
                f"{certificate.processor} was certified with {certificate.image_processor}, but {kind} is loaded "
                "here, whose pixels can be different; install what was installed there, torchvision for example"
            )
        result = cls(loaded, model_type(folder), certificate)
        if certificate is not None and certificate.pixels not in ("", pixels_digest(result.features)):
            raise ProcessorError(
                f"{certificate.processor} makes other pixels of the same images here, with {result.decoders}, than "
                f"when certified, with {certificate.decoders}; install those versions and the same transformers, or "
                "build the dataset again"
            )
        return result

    @property
    def decoders(self) -> str:
        """Versions of the libraries that pixels depend on."""
        from transformers.image_processing_backends import TorchvisionBackend

        return decoders(isinstance(self.loaded.image_processor, TorchvisionBackend))

    @property
    def name(self) -> str:
        """Name of the processor's class."""
        return type(self.loaded).__name__

    @cached_property
    def image_token(self) -> str:
        """The special token that stands for one image in a text."""
        token = getattr(self.loaded, "image_token", None)
        if not isinstance(token, str) or self.token_ids(token) != [self.loaded.tokenizer.convert_tokens_to_ids(token)]:
            raise ProcessorError(f"{self.name} has no special token that marks an image in a text")
        return token

    @cached_property
    def image_token_ids(self) -> list[int]:
        """Ids that count as image in type ids."""
        return [int(number) for number in self.loaded.image_token_ids if number is not None]

    @cached_property
    def around(self) -> tuple[str, str]:
        """Text that the processor writes before and after an image, to be tokenized with the text there."""
        before, _, after, _ = self._written(*FIRST_SIZE, several=False)
        return before, after

    @cached_property
    def by_count(self) -> bool:
        """Whether images in rows with several images are expanded differently from single ones."""
        if self.certificate is not None:
            return self.certificate.by_count
        pairs = [[self._expansions(*size, several) for several in (False, True)] for size in SINGLE]
        return any(one.patches != two.patches or not np.array_equal(one.ids, two.ids) for one, two in pairs)

    def expansion(self, width: int, height: int, images: int = 1) -> Expansion:
        """Return what replaces the image token of an image.

        Args:
            width: in pixels, after any rotation by EXIF.
            height: in pixels.
            images: number of images in the image's row (its conversation, not the sequence that it is packed into).

        Raises:
            ProcessorError: the processor rejects the size, or writes a text around it that depends on the size.
        """
        return self._expansions(int(width), int(height), images > 1 and self.by_count)

    def features(self, image: Any, images: int = 1) -> dict[str, Array]:
        """Compute the model inputs of one image.

        Args:
            image: an RGB image of Pillow.
            images: number of images in the image's row.

        Returns:
            The inputs; those that the certificate has levels of as bytes.

        Raises:
            ProcessorError: the processor rejects the image.
        """
        if levels := self.certificate.levels if self.certificate else {}:
            inputs = self.raw_features(image, images)
            for name, each in levels.items():
                if (packed := each.pack(inputs[name])) is None:  # some filters overshoot: such pixels do not fit a byte
                    return self._features(image, images)
                inputs[name] = packed
            return inputs
        return self._features(image, images)

    def raw_features(self, image: Any, images: int = 1) -> dict[str, Array]:
        """Compute the model inputs of one image like `features`, without normalizing pixels."""
        return self._features(image, images, **RAW)

    def byte_values(self) -> npt.NDArray[np.float32] | None:
        """Return what the bytes of pixels are normalized to, float32 [channels, 256], or None if it is not known."""
        images, pixels = self.loaded.image_processor, np.arange(256, dtype=np.uint8)[None, None].repeat(3, axis=0)
        try:
            if images.do_rescale:
                pixels = images.rescale(pixels, images.rescale_factor)
            if images.do_normalize:
                pixels = images.normalize(pixels, images.image_mean, images.image_std)
            return np.asarray(pixels, np.float32).reshape(3, 256)
        except (AttributeError, TypeError, ValueError):  # some processors normalize in another way
            return None

    def _features(self, image: Any, images: int, **options: bool) -> dict[str, Array]:
        row = [image]
        if images > 1 and self.by_count:
            # a second image in the row, for what depends on their number; its inputs are cut off below
            row.append(np.zeros((FIRST_SIZE[1], FIRST_SIZE[0], 3), np.uint8))
        try:
            output, _ = self.loaded._process_images([row], **{**self._images_options, **options})
            inputs = image_inputs(output, self.loaded.unused_input_names)
        except ValueError as error:
            raise ProcessorError(f"{self.name} rejects an image: {first_line(error)}") from error
        return {name: array[:1] if array.shape[:1] == (len(row),) else array for name, array in inputs.items()}

    def call(self, texts: list[str], rows: list[list[Any]], **options: Any) -> Any:
        """Call the processor itself on texts with image tokens and their images, without adding special tokens."""
        some: dict[str, Any] = {"images": rows} if any(rows) else {}
        some |= {"text_kwargs": {"return_tensors": None}}  # rows of different lengths do not fit one tensor
        some |= {"images_kwargs": {"return_tensors": self._images_options.get("return_tensors")}}
        return self.loaded(text=texts, **some, add_special_tokens=False, padding=False, **options)

    def token_ids(self, text: str) -> list[int]:
        """Tokenize a text without adding special tokens."""
        return self.loaded.tokenizer(text, add_special_tokens=False)["input_ids"]

    @cached_property
    def _expansions(self) -> Any:
        return lru_cache(4096)(self._expand)

    def _expand(self, width: int, height: int, several: bool) -> Expansion:
        before, core, after, patches = self._written(width, height, several)
        if (before, after) != self.around:
            raise ProcessorError(
                f"{self.name} cannot be used: it writes {before!r} before and {after!r} after an image of "
                f"{width}x{height} pixels, but {self.around[0]!r} and {self.around[1]!r} around one of "
                f"{FIRST_SIZE[0]}x{FIRST_SIZE[1]}; use settings with which this text is the same for all sizes"
            )
        # Tokenizing each run of image tokens as one token is much faster.
        lengths = [len(run[0]) // len(run[1]) for run in self._runs.finditer(core)]
        ids = np.array(self.token_ids(self._runs.sub(r"\1", core)), np.int32)
        times = np.ones(len(ids), np.int64)
        is_image = np.isin(ids, self.image_token_ids)
        if is_image.sum() != len(lengths):
            raise ProcessorError(f"{self.name} expands an image to tokens that the tokenizer does not know")
        # each run was tokenized as one token: it is repeated to its length
        times[is_image] = lengths
        expanded = np.repeat(ids, times)
        expanded.flags.writeable = False
        return Expansion(expanded, patches)

    def _written(self, width: int, height: int, several: bool) -> tuple[str, str, str, int]:
        if width < 1 or height < 1 or width * height > MOST_PIXELS:
            raise ProcessorError(f"an image of {width}x{height} pixels is empty or has more than {MOST_PIXELS} pixels")
        inputs, texts = self._processed(width, height, several)
        if not texts:
            raise ProcessorError(f"{self.name} does not report how it expands image tokens")
        special = list(self._special.finditer(texts[0]))
        if not special:
            raise ProcessorError(f"{self.name} expands an image to text without special tokens")
        start, stop = special[0].start(), special[-1].end()
        if (pixels := next((inputs[name] for name in sorted(inputs, key=len) if "pixel_values" in name), None)) is None:
            raise ProcessorError(f"{self.name} returns no pixel_values, so patches cannot be counted")
        return texts[0][:start], texts[0][start:stop], texts[0][stop:], _patches(pixels, 1 + several)

    def _processed(self, width: int, height: int, several: bool, channels: int = 1) -> tuple[Any, list[str]]:
        image = np.broadcast_to(np.uint8(0), (channels, height, width))  # takes no memory for its pixels
        try:
            with np.errstate(all="ignore"):
                # Work on pixels is left out: no expansion depends on it.
                options = {**self._images_options, **RAW, "resample": 0}
                return self._shapes._process_images([[image] * (1 + several)], **options)
        except Exception as error:
            if channels == 1:  # some processors only take colours
                return self._processed(width, height, several, channels=3)
            message = f"{self.name} rejects an image of {width}x{height} pixels: {first_line(error)}"
            raise ProcessorError(message) from error

    @cached_property
    def _shapes(self) -> Any:
        """The processor with an image processor that replaces each image by a black one, for speed.

        Image processors that use Pillow neither read nor resize pixels, and take images of one channel. Others are not
        replaced.
        """
        from transformers import image_processing_backends
        from transformers.image_processing_backends import PilBackend

        if not isinstance(self.loaded.image_processor, PilBackend):
            return self.loaded

        def resized(image: Any, size: tuple[int, int], **_: Any) -> Any:
            if min(size) < 1:
                raise ValueError(f"the image is resized to {size[1]}x{size[0]} pixels")
            return np.broadcast_to(np.uint8(0), (len(image), *size))

        own, names = PilBackend.resize, {**vars(image_processing_backends), "np_resize": resized}

        class Shapes(PilBackend):
            # Computes the new size as transformers does, and calls `resized` with it.
            resize = FunctionType(own.__code__, names, argdefs=own.__defaults__)

            def process_image(self, image: Any, *_: Any, **__: Any) -> Any:
                return image

            rescale = normalize = process_image

        result, images = copy.copy(self.loaded), copy.copy(self.loaded.image_processor)
        # `Shapes` comes directly before `PilBackend` in the order in which methods are looked up: operations that a
        # family redefines still run, and reach `Shapes` where they call the basic ones.
        images.__class__ = type(type(images).__name__, (type(images), cast(Any, Shapes)), {})
        result.image_processor = images
        return result

    @cached_property
    def _images_options(self) -> dict[str, Any]:
        merged = self.loaded._merge_kwargs(tokenizer_init_kwargs=self.loaded.tokenizer.init_kwargs)
        wanted = signature(self.loaded._process_images).parameters  # some processors pass options of their own
        own = {name: merged[name] for name in wanted if name in merged and "kwargs" not in name}
        options = {name: value for name, value in (merged["images_kwargs"] | own).items() if name != "return_tensors"}
        try:
            self.loaded._process_images([[np.zeros((*FIRST_SIZE, 3), np.uint8)]], **options)
        except NotImplementedError:
            raise ProcessorError(f"{self.name} does not report how it expands image tokens") from None
        except AttributeError:  # the code of some processors takes arrays for granted
            options["return_tensors"] = "np"
        return options

    @cached_property
    def _special(self) -> re.Pattern[str]:
        added = self.loaded.tokenizer.added_tokens_decoder.values()
        return re.compile(_one_of(token.content for token in added if not token.normalized))

    @cached_property
    def _runs(self) -> re.Pattern[str]:
        return re.compile(rf"({_one_of(self.loaded.tokenizer.convert_ids_to_tokens(self.image_token_ids))})\1*")


def _one_of(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"


def _patches(pixels: Any, images: int) -> int:
    """Count the patches of each of some equal images: rows of patches, or crops of 1 or 3 channels in cells of 14 times
    14."""
    shape: list[int] = []
    while isinstance(pixels, list | tuple):
        shape.append(len(pixels))
        pixels = pixels[0]
    shape += pixels.shape
    if len(shape) >= 4 and shape[-3] in (1, 3):
        return int(-(-np.prod(shape, dtype=np.int64) // (images * shape[-3] * 14 * 14)))
    return int(np.prod(shape[:-1], dtype=np.int64)) // images
