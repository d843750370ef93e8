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


def _aya() -> Any:
    more, size = {"patch_size": 14, "img_size": 56, "downsample_factor": 2}, {"height": 56, "width": 56}
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
