"""Small processors of image-text families, made from settings alone, and the folders that they are loaded from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from PIL import Image
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from support.small_tokenizers import byte_level
from tokenloom.resources.processors.certificate import certify
from tokenloom.resources.processors.features import TEXT_INPUTS, combine
from tokenloom.resources.processors.processor import Processor

QWEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
GLM = ("<|begin_of_image|>", "<|end_of_image|>", "<|image|>", "<|video|>", "<|begin_of_video|>", "<|end_of_video|>")
AYA = ("<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_LINE_BREAK|>", "<|IMG_PATCH|>", "<image>", "TILE", "TILE_GLOBAL")
IDEFICS = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>")
PLACES = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
PINS = [[rows * 56, columns * 56] for rows in range(1, 4) for columns in range(1, 4)]


def tokenizer(*more: str, bos: str | None = None, **named: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with tokens for images, some of which have a name."""
    made = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(),
        eos_token="<|endoftext|>",
        pad_token="<|pad|>",
        extra_special_tokens=named,
        **({"bos_token": bos} if bos else {}),
    )
    added: Any = [AddedToken(token, special=True, normalized=False) for token in more]
    made.add_tokens(added, special_tokens=True)
    return made


def _made(name: str, images: str, tokens: PreTrainedTokenizerFast, more: Any = None, **settings: Any) -> Any:
    """A processor whose class has been given its parts; a video processor would need torchvision."""
    loaded = getattr(transformers, name)

    class Made(loaded):
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            return None if argument is None else super().check_argument_for_proper_class(argument_name, argument)

    Made.__name__ = name
    parts: dict[str, Any] = {"image_processor": getattr(transformers, f"{images}Pil")(**settings), "tokenizer": tokens}
    if "video_processor" in loaded.get_attributes():
        parts["video_processor"] = None
    return Made(**parts, **(more or {}))


def _qwen(name: str, **settings: Any) -> Any:
    size = {"shortest_edge": 3136, "longest_edge": 50176}
    return _made(name, "Qwen2VLImageProcessor", tokenizer(*QWEN), size=size, **settings)


def _llava_next() -> Any:
    more = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    sizes = {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}}
    tokens = tokenizer(image_token="<image>")
    return _made("LlavaNextProcessor", "LlavaNextImageProcessor", tokens, more, **sizes, image_grid_pinpoints=PINS)


def _onevision() -> Any:
    more = {"num_image_tokens": 16, "vision_feature_select_strategy": "full"}
    tokens, size = tokenizer(image_token="<image>", video_token="<video>"), {"height": 56, "width": 56}
    name = "LlavaOnevision"
    return _made(f"{name}Processor", f"{name}ImageProcessor", tokens, more, size=size, image_grid_pinpoints=PINS)


def gemma3(**settings: Any) -> Any:
    tokens = tokenizer(
        boi_token="<start_of_image>", eoi_token="<end_of_image>", image_token="<image_soft_token>", bos="<bos>"
    )
    size = {"height": 56, "width": 56}
    return _made("Gemma3Processor", "Gemma3ImageProcessor", tokens, {"image_seq_length": 16}, size=size, **settings)


def _gemma4() -> Any:
    named = {"boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>"}
    named |= {"boa_token": "<|audio>", "eoa_token": "<audio|>", "audio_token": "<|audio|>"}
    more = {"feature_extractor": transformers.Gemma4AudioFeatureExtractor()}
    tokens = tokenizer("<|video|>", bos="<bos>", **named)
    return _made("Gemma4Processor", "Gemma4ImageProcessor", tokens, more, max_soft_tokens=70)


def _idefics3() -> Any:
    sizes = {"size": {"longest_edge": 168}, "max_image_size": {"longest_edge": 56}}
    tokens = tokenizer(*IDEFICS, *PLACES)
    return _made("Idefics3Processor", "Idefics3ImageProcessor", tokens, {"image_seq_len": 4}, **sizes)


def _internvl() -> Any:
    named = {"start_image_token": "<img>", "end_image_token": "</img>"}
    tokens = tokenizer(context_image_token="<IMG_CONTEXT>", video_token="<video>", **named)
    size = {"height": 56, "width": 56}
    images, more = "GotOcr2ImageProcessor", {"image_seq_length": 4}
    return _made("InternVLProcessor", images, tokens, more, size=size, crop_to_patches=True, max_patches=6)


def _aya(size: Any = None) -> Any:
    more, size = {"patch_size": 14, "img_size": 56, "downsample_factor": 2}, size or {"height": 56, "width": 56}
    images = "GotOcr2ImageProcessor"
    return _made("AyaVisionProcessor", images, tokenizer(*AYA), more, size=size, crop_to_patches=True, max_patches=6)


def _llava() -> Any:
    more = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    sizes = {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}}
    return _made("LlavaProcessor", "CLIPImageProcessor", tokenizer(image_token="<image>"), more, **sizes)


def paligemma() -> Any:
    tokens = tokenizer(image_token="<image>", bos="<bos>")
    images = transformers.SiglipImageProcessorPil(size={"height": 56, "width": 56})
    images.image_seq_length = 16  # pyright: ignore[reportAttributeAccessIssue]
    return transformers.PaliGemmaProcessor(images, tokens)


def mllama() -> Any:
    tokens, size = tokenizer("<|image|>", "<|python_tag|>", bos="<|begin_of_text|>"), {"height": 56, "width": 56}
    return _made("MllamaProcessor", "MllamaImageProcessor", tokens, size=size, max_image_tiles=4)


def _two(name: str, images: str, *more: str, settings: Any = None, **parts: Any) -> Any:
    tokens = tokenizer("<image>", *more, image_token="<image>")
    return _made(name, f"{images}ImageProcessor", tokens, parts, **(settings or {"size": {"height": 56, "width": 56}}))


def _video() -> Any:
    more = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    sizes = {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}}
    tokens, pins = tokenizer(image_token="<image>", video_token="<video>"), {"image_grid_pinpoints": PINS}
    return _made("LlavaNextVideoProcessor", "LlavaNextImageProcessor", tokens, more, **sizes, **pins)


def _janus() -> Any:
    tokens = tokenizer(image_token="<image>", boi_token="<boi>", eoi_token="<eoi>")
    return _made("JanusProcessor", "JanusImageProcessor", tokens, size={"height": 60, "width": 60}, min_size=14)


FURTHER: dict[str, Callable[[], Any]] = {
    "deepseek_vl": lambda: _two("DeepseekVLProcessor", "DeepseekVL", "<image_placeholder>", num_image_tokens=16),
    "janus": _janus,
    "llava_next_video": _video,
    "ovis2": lambda: _two(
        *("Ovis2Processor", "Ovis2", "<IMG_START>", "<IMG_ATOM>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"),
        image_seq_length=4,
    ),
    "aya_vision": lambda: _aya({"height": 50, "width": 50}),
}
"""Further families, whose calls return tensors by default, read arrays, or have crops of odd sizes."""

NOT_USABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "blip2": (lambda: _two("Blip2Processor", "Blip"), "Blip2Processor does not report how it expands image tokens"),
    "idefics2": (
        lambda: _made(
            "Idefics2Processor",
            "Idefics2ImageProcessor",
            tokenizer(
                *IDEFICS,
                image_token="<image>",
                image_boundary_token="<fake_token_around_image>",
                end_of_utterance_token="<end_of_utterance>",
            ),
        ),
        "Idefics2Processor does not report how it expands image tokens",
    ),
    "clip": (
        lambda: _made("CLIPProcessor", "CLIPImageProcessor", tokenizer()),
        "CLIPProcessor has no special token that marks an image in a text",
    ),
    "ernie4_5_vl": (
        lambda: _made("Ernie4_5_VLMoeProcessor", "Ernie4_5_VLMoeImageProcessor", _ernie()),
        "Ernie4_5_VLMoeProcessor cannot be used: it rejects several rows at once: ",
    ),
}
"""Families that are refused, and how the sentence starts."""


def _ernie() -> Any:
    kinds = ((kind, place) for kind in ("image", "video") for place in ("", "_start", "_end"))
    return tokenizer(**{f"{kind}{place}_token": f"<{kind}{place}>" for kind, place in kinds})


FAMILIES: dict[str, Callable[[], Any]] = {
    "aya_vision": _aya,
    "gemma3": gemma3,
    "gemma4": _gemma4,
    "glm4v": lambda: _made(
        "Glm4vProcessor",
        "Glm4vImageProcessor",
        tokenizer(*GLM),
        size={"shortest_edge": 3136, "longest_edge": 100352},
    ),
    "idefics3": _idefics3,
    "internvl": _internvl,
    "llava": _llava,
    "llava_next": _llava_next,
    "llava_onevision": _onevision,
    "qwen2_5_vl": lambda: _qwen("Qwen2_5_VLProcessor"),
    "qwen2_vl": lambda: _qwen("Qwen2VLProcessor"),
    "qwen3_vl": lambda: _qwen("Qwen3VLProcessor", patch_size=16),
}
"""Families that are certified, by name."""


def save(processor: Any, folder: Path, *, older: bool = False, model_type: str | None = None) -> Path:
    """Write a processor's files as `save_pretrained` of transformers 5 does, or as older hub repositories have them.

    `save_pretrained` itself does not save a processor without its video processor.
    """
    processor.tokenizer.save_pretrained(folder)
    content = json.loads(processor.to_json_string())
    if "video_processor" in type(processor).get_attributes():
        content["video_processor"] = {"video_processor_type": "Qwen2VLVideoProcessor"}
    if older:
        images = content.pop("image_processor") | {"processor_class": content["processor_class"]}
        images["image_processor_type"] += "Fast"
        (folder / "preprocessor_config.json").write_text(json.dumps(images))
        content.pop("video_processor", None)
    (folder / "processor_config.json").write_text(json.dumps(content))
    if model_type:
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture of noise."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


SIZES = (((64, 48),), ((1, 2), (5, 4)), ((200, 90), (31, 300)), ((500, 60),))
"""Widths and heights of the images of rows."""


def differences(loaded: Any) -> list[str]:
    """Return what differs between what is made of a batch and of single rows, and the processor's own calls on them."""
    tokens = certify(Processor(loaded))
    processor, wrong = Processor(loaded, None, tokens), list[str]()
    rows = [[picture(*size, seed=number) for number, size in enumerate(row)] for row in SIZES]
    texts = ["Look: " + " and ".join([tokens.token] * len(row)) for row in rows]
    for batch, given in ((rows, texts), *(([row], [text]) for row, text in zip(rows, texts, strict=True))):
        own = loaded(text=given, images=batch, return_tensors="pt", padding=True, add_special_tokens=False)
        counts = [sum(len(processor.expansion(*image.size, len(row)).ids) for image in row) for row in batch]
        plain = [len(processor.token_ids(text)) - len(row) for text, row in zip(given, batch, strict=True)]
        if own["attention_mask"].sum(1).tolist() != [a + b for a, b in zip(plain, counts, strict=True)]:
            wrong.append(f"{len(batch)} rows: tokens")
        features = [[processor.features(each, len(row)) for each in row] for row in batch]
        made = combine(features, tokens.rules, tokens.levels)
        expected = {name: value.numpy() for name, value in own.items() if name not in TEXT_INPUTS}
        unused = {*loaded.unused_input_names}
        if made.keys() != expected.keys() - unused:
            wrong.append(f"{len(batch)} rows: {sorted(made)} instead of {sorted(expected)}")
        wrong += [
            f"{len(batch)} rows: {name}"
            for name, array in made.items()
            if array.dtype != expected[name].dtype or not np.array_equal(array, expected[name])
        ]
    return wrong
