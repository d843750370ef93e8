"""Checks that images are expanded, and model inputs combined, as a processor's own call does.

The certificate of a processor is stored, so that a later run loads no transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Protocol

import numpy as np

from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.processors.features import RULES, Array, Levels, find_levels, gives, image_inputs
from tokenloom.resources.processors.pixels import installed, pixels_digest
from tokenloom.resources.processors.processor import (
    CERTIFICATE,
    FIRST_SIZE,
    RAW,
    SINGLE,
    ImageTokens,
    Processor,
    ProcessorError,
)
from tokenloom.resources.visible import first_line

VERSION = 3
"""Increase this when the certificate or what it certifies changes."""


class Cache(Protocol):
    """Keeps certificates, as a store keeps probes."""

    def recalled(self, name: str, version: int, depends: Mapping[str, str], compute: Callable[[], str]) -> str: ...


@dataclass
class CertifiedProcessor:
    """A processor, not loaded yet.

    Args:
        files: its files and the tokenizer's.
        cache: where certificates are kept, so that an unchanged build loads nothing.
    """

    files: dict[str, bytes] = field(repr=False)
    cache: Cache | None = field(default=None, compare=False)

    @cached_property
    def digest(self) -> str:
        """Digest of the files."""
        return digest_json({name: digest_bytes(content) for name, content in self.files.items()})

    @cached_property
    def tokens(self) -> ImageTokens:
        """The certificate.

        Raises:
            ProcessorError: the processor cannot be used.
        """
        libraries = ("transformers", "numpy", "tokenizers")
        versions = {"files": self.digest, **{name: metadata.version(name) for name in libraries}}
        versions["decoders"] = installed()

        def certified() -> str:
            return certify(self.processor).to_bytes().decode()

        if self.cache is None:
            return ImageTokens.from_bytes(certified())
        return ImageTokens.from_bytes(self.cache.recalled("processor", VERSION, versions, certified))

    @property
    def processor(self) -> Processor:
        """The processor, loaded once per process.

        Raises:
            ProcessorError: it cannot be loaded.
        """
        with _LOADING:
            return _loaded(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cache": None}

    def __hash__(self) -> int:
        return hash(self.digest)


_LOADING = Lock()


@lru_cache(4)
def _loaded(given: CertifiedProcessor) -> Processor:
    from tokenloom.resources.processors.processor import Processor

    certificate = given.files.get(CERTIFICATE)
    with TemporaryDirectory(prefix="tokenloom-processor-") as folder:
        for name, content in given.files.items():
            Path(folder, name).write_bytes(content)
        return Processor.load(Path(folder), ImageTokens.from_bytes(certificate) if certificate else None)


BATCHES = (
    (((64, 48),), ((640, 480), (37, 91)), ((1, 2), (336, 336), (500, 60))),
    ((), ((300, 150), (300, 150)), (), ((28, 600),)),
)
"""Widths and heights of the images of rows, in batches whose model inputs are combined."""

TEXTS = ("", "Look: ", "\n", " and\n\n", "word", "<", " \t", "\n\n\nIs it a cat? ", "Grüße, ", "  ")
"""Pieces of text around images, taken in turn; images without text between them are adjacent."""

MROPE = ("Glm4vProcessor", "Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor")
"""Processor classes whose models take three position ids per token: time, height and width."""

PACKS = (
    *("AyaVisionProcessor", "Gemma4Processor", "Idefics3Processor", "InternVLProcessor", "LlavaNextProcessor"),
    *("LlavaOnevisionProcessor", "LlavaProcessor", "Phi4MultimodalProcessor", "PixtralProcessor", "SmolVLMProcessor"),
    *MROPE,
)
"""Processor classes whose models were compared, packed and unpacked: several rows can be packed into one sequence, with
position ids that restart at each row, without a change of the outputs."""

LINEAR = "its linear attention carries state from one packed row to the next"
UNPACKED = {
    "Gemma3Processor": "its image tokens attend to later tokens of the sequence",
    "Lfm2VlProcessor": "its convolutions reach from one packed row into the next",
    "MllamaProcessor": "its cross attention has one mask for all images of a sequence",
    "qwen3_5": LINEAR,
    "qwen3_5_moe": LINEAR,
}
"""Why models do not pack, by processor class, or by model type where models of another kind share their class."""


def unpacked_reason(processor_class: str, model_type: str | None = None) -> str:
    """Return why rows cannot be packed, as the end of a sentence; empty if they can.

    Args:
        processor_class: name of the processor's class, such as `Qwen3VLProcessor`.
        model_type: from the model's `config.json`. Without it, Qwen3.5 counts as Qwen3-VL, which has the same class.
    """
    unknown = "" if processor_class in PACKS else "it is not known whether its model can take packed rows"
    return UNPACKED.get(model_type or "") or UNPACKED.get(processor_class, unknown)


def certify(processor: Processor) -> ImageTokens:
    """Compare expansions and combined features with the processor's own calls on rows of many images and sizes.

    Raises:
        ProcessorError: something differs, so that the processor cannot be used.
    """
    try:
        return _certified(processor)
    except Exception as error:  # of the code of a family that is not known
        if isinstance(error, ProcessorError):
            raise
        raise ProcessorError(f"{processor.name} cannot be used: {first_line(error)}") from error


def _certified(processor: Processor) -> ImageTokens:
    pictures = np.random.default_rng(0)
    singles = (_called(processor, [[size]], number, pictures, **RAW) for number, size in enumerate(SINGLE))
    types = [_type_ids(processor, output) for _, output in singles]
    batches = [_called(processor, batch, number, pictures) for number, batch in enumerate(BATCHES)]
    types += [_type_ids(processor, output) for _, output in batches]
    if any(names != types[0] for names in types):
        raise ProcessorError(f"{processor.name} returns type ids for some texts and not for others")
    rules, levels = _rules_and_levels(processor, batches)
    sizes = [processor.expansion(*size, images) for size in SINGLE for images in (1, 2)]
    reason = unpacked_reason(processor.name, processor.model_type)
    tokens = ImageTokens(
        processor=processor.name,
        image_processor=type(processor.loaded.image_processor).__name__,
        token=processor.image_token,
        token_id=processor.token_ids(processor.image_token)[0],
        ids=processor.image_token_ids,
        before=processor.around[0],
        after=processor.around[1],
        rules=rules,
        type_ids=types[0],
        by_count=processor.by_count,
        packs=not reason,
        reason=reason,
        mrope=processor.name in MROPE,
        merge=int(getattr(processor.loaded.image_processor, "merge_size", 1) or 1),
        expansions=digest_json([[each.ids.tolist(), each.patches] for each in sizes]),
        levels=levels,
        decoders=processor.decoders,
    )
    return replace(tokens, pixels=pixels_digest(replace(processor, certificate=tokens).features))


def _called(processor: Processor, sizes: Any, number: int, pictures: np.random.Generator, **options: Any) -> Any:
    """Return the images of rows, and what the processor returns for them and texts; its ids are checked."""
    from PIL import Image

    rows, pieces, token = list[list[Any]](), list[list[str]](), processor.image_token
    for row in sizes:
        # other texts around the images in each row
        start = 3 * number + 2 * len(rows)
        texts = [TEXTS[(start + place) % len(TEXTS)] for place in range(len(row) + 1)]
        if number % 2:
            texts[1:-1] = [""] * (len(row) - 1)
        pieces.append(texts if row else ["a text only"])
        rows.append([Image.fromarray(pictures.integers(0, 256, (*size[::-1], 3), np.uint8)) for size in row])
    texts = [token.join(each) for each in pieces]
    try:
        output = processor.call(texts, rows, **options)
    except Exception as error:
        if isinstance(error, ProcessorError):
            raise
        width, height = max(sizes[0], default=FIRST_SIZE)
        given = f"a row with an image of {width}x{height} pixels" if len(rows) == 1 else "several rows at once"
        raise ProcessorError(f"{processor.name} cannot be used: it rejects {given}: {first_line(error)}") from error
    for ids, texts, images in zip(output["input_ids"], pieces, rows, strict=True):
        # the claim of the certificate: expanding each token by itself gives what the processor's call gives
        if list(ids) != _expanded(processor, texts, [image.size for image in images]):
            written = ", ".join(f"{image.width}x{image.height}" for image in images)
            raise ProcessorError(
                f"{processor.name} cannot be used: for images of {written} pixels, it returns other "
                "token ids than a text in which each image token is expanded where it is"
            )
    return rows, output


def _expanded(processor: Processor, pieces: list[str], sizes: list[tuple[int, int]]) -> list[int]:
    """Return the ids of pieces of text with images between them, whose tokens are replaced by their expansions."""
    token, (before, after) = processor.image_token, processor.around
    ids = np.array(processor.token_ids((before + token + after).join(pieces)), np.int64)
    places = np.flatnonzero(ids == processor.loaded.tokenizer.convert_tokens_to_ids(token))
    if len(places) != len(sizes):
        return []
    # from the end, so that earlier places stay right
    for place, size in reversed(list(zip(places, sizes, strict=True))):
        ids = np.concatenate([ids[:place], processor.expansion(*size, len(sizes)).ids, ids[place + 1 :]])
    return ids.tolist()


def _type_ids(processor: Processor, output: Any) -> list[str]:
    own = processor.loaded.tokenizer("a", add_special_tokens=False)
    names = [name for name in ("mm_token_type_ids", "token_type_ids") if name in output and name not in own]
    for name in names:
        for ids, types in zip(output["input_ids"], output[name], strict=True):
            if not np.array_equal(np.isin(ids, processor.image_token_ids).astype(int), types):
                raise ProcessorError(f"{processor.name} cannot be used: its {name} differ from the image tokens")
    return names


def _rules_and_levels(processor: Processor, batches: list[Any]) -> tuple[dict[str, str], dict[str, Levels]]:
    """Return the first rule for each model input that holds in all batches, and what the bytes of inputs stand for."""
    holding, made = dict[str, list[str]](), list[tuple[Any, int, dict[str, Array]]]()
    for images, output in batches:
        try:
            expected = image_inputs(output, processor.loaded.unused_input_names)
        except ValueError as error:
            raise ProcessorError(f"{processor.name} cannot be used: {error}") from error
        rows = [[processor.features(image, len(row)) for image in row] for row in images]
        for name, array in expected.items():
            parts = [[image[name] for image in row if name in image] for row in rows]
            # rules are ruled out batch by batch; of those that hold in all, the first is used
            holding[name] = [rule for rule in holding.get(name, RULES) if gives(rule, parts, array)]
            if not holding[name]:
                raise ProcessorError(
                    f"{processor.name} cannot be used: {name} of a batch is not made of single images'"
                )
        for row, features in zip(images, rows, strict=True):
            made += [(image, len(row), inputs) for image, inputs in zip(row, features, strict=True)]
    return {name: rules[0] for name, rules in holding.items()}, _levels(processor, made)


def _levels(processor: Processor, made: list[tuple[Any, int, dict[str, Array]]]) -> dict[str, Levels]:
    if (values := processor.byte_values()) is None:
        return {}
    levels_of, pairs = dict[str, Levels](), dict[str, list[tuple[Array, Array]]]()
    for image, count, features in made:
        raw = processor.raw_features(image, count)
        for name, array in features.items():
            pairs.setdefault(name, []).append((raw[name], array))
    for name, arrays in pairs.items():
        floats = all(array.dtype == np.float32 for _, array in arrays)
        if floats and (levels := find_levels(values, arrays)) is not None:
            levels_of[name] = levels
        # one input that is neither bytes nor unchanged: raw features do not stand for the real ones
        elif not all(np.array_equal(raw, array) for raw, array in arrays):
            return {}
    return levels_of
