"""Settings of tiny image-text models that fit the processors of `vision_processors`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from support.vision_processors import FAMILIES, picture, save
from tokenloom import DataPipeline

TEXT = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT |= {"num_key_value_heads": 2}
ROTARY = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
LAYERS = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}

MODELS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        "model_type": "qwen2_vl",
        "text_config": {**TEXT, "rope_parameters": ROTARY},
        "vision_config": {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 2},
    },
    "llava": {
        "model_type": "llava",
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": {"model_type": "clip_vision_model", **LAYERS, "image_size": 56, "patch_size": 14},
        "vision_feature_layer": -1,
    },
    "idefics3": {
        "model_type": "idefics3",
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": {**LAYERS, "image_size": 56, "patch_size": 14},
        "scale_factor": 2,
    },
}
"""`training.model`, by family."""

TOWERS = {"qwen2_vl": "visual.patch_embed.proj", "llava": "patch_embedding", "idefics3": "patch_embedding"}
"""Part of the name of the first weights of each vision tower."""

SIZES = ((64, 48), (120, 40), (33, 70), (56, 56), (28, 200), (90, 90))


def write_image_rows(folder: Path, counts: Sequence[int], name: str = "rows") -> Path:
    """Write conversations with some images each, of different sizes, at different places, as JSON Lines."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rows, number = [], 0
    for row, count in enumerate(counts):
        parts: list[dict[str, Any]] = [{"type": "text", "text": f"Question {row}{' more' * (row % 4)}"}]
        for image in range(count):
            path = folder / "images" / f"{name}-{number}.png"
            picture(*SIZES[number % len(SIZES)], seed=number).save(path)
            parts.insert((row + image) % (len(parts) + 1), {"type": "image", "path": str(path.relative_to(folder))})
            number += 1
        answer = [{"type": "text", "text": f"answer {row} {'yes ' * (row % 3)}"}]
        messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]
        rows.append({"messages": messages})
    source = folder / f"{name}.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return source


TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' }}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ MARKER }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)
MARKERS = {"qwen2_vl": "<|vision_start|><|image_pad|><|vision_end|>", "llava": "<image>", "idefics3": "<image>"}


def build_images(
    folder: Path, family: str, counts: Sequence[int], name: str = "pictures", max_length: int = 512, **sections: Any
) -> Path:
    """Build a dataset of rows with some images each in `folder/store`, and return its YAML. If no row has an image, it
    is a dataset of texts with the processor's tokenizer."""
    processor = folder / f"{family}-processor"
    if not processor.exists():
        made = FAMILIES[family]()
        made.tokenizer.chat_template = TEMPLATE.replace("MARKER", repr(MARKERS[family]))
        save(made, processor)
    source = write_image_rows(folder, counts, name)
    config: dict[str, Any] = {"dataset": {"name": source.name}}
    named = "processor" if any(counts) else "name_or_path"
    config["tokenizer"] = {named: str(processor), "max_length": max_length}
    for section, values in sections.items():
        config[section] = {**config.get(section, {}), **values} if isinstance(values, dict) else values
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    DataPipeline.from_config(path, folder / "store").unwrap().build().unwrap()
    return path
