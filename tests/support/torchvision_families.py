"""Program: compares processors that need torchvision with their own calls; prints what differs, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from support import torchvision_stand_in

torchvision_stand_in.install()

import transformers  # noqa: E402

from support.vision_processors import differences, tokenizer  # noqa: E402
from tokenloom.resources.processors.processor import ProcessorError  # noqa: E402

LFM = [f"<|img_row_{row}_col_{column}|>" for row in range(1, 11) for column in range(1, 11)]


def pixtral(patch: int, merge: int) -> Any:
    size = {"longest_edge": 8 * patch * merge}
    images = transformers.PixtralImageProcessorPil(size=size, patch_size={"height": patch, "width": patch})
    tokens = tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    return transformers.PixtralProcessor(images, tokens, patch_size=patch, spatial_merge_size=merge)


def lfm2_vl() -> Any:
    named = {"image_token": "<image>", "image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>"}
    tokens = tokenizer(*LFM, image_thumbnail="<|img_thumbnail|>", **named)
    images = transformers.Lfm2VlImageProcessor()
    return transformers.Lfm2VlProcessor(images, tokens)


def phi4() -> Any:
    tokens = tokenizer(image_token="<|endoftext10|>", audio_token="<|endoftext11|>")
    images = transformers.Phi4MultimodalImageProcessor(size={"height": 56, "width": 56}, dynamic_hd=8)
    return transformers.Phi4MultimodalProcessor(images, transformers.Phi4MultimodalFeatureExtractor(), tokens)


def llama4() -> Any:
    names = ("image", "image_start", "image_end", "patch", "tile_x_separator", "tile_y_separator")
    images = transformers.Llama4ImageProcessor(size={"height": 56, "width": 56}, max_patches=4)
    return transformers.Llama4Processor(images, tokenizer(*(f"<|{name}|>" for name in names)))


FAMILIES: dict[str, Callable[[], Any]] = {
    "pixtral": lambda: pixtral(16, 1),
    "mistral3": lambda: pixtral(14, 2),
    "lfm2_vl": lfm2_vl,
    "phi4_multimodal": phi4,
    "llama4": llama4,
}


if __name__ == "__main__":
    found: dict[str, Any] = {}
    for name, make in FAMILIES.items():
        try:
            found[name] = differences(make())
        except ProcessorError as error:
            found[name] = str(error)
    print(json.dumps(found))
