"""What a model can do with packed rows, which its processor does not tell: by processor class and model type."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """What is known of the models that a processor belongs to.

    Args:
        packs: whether several rows can be packed into one sequence, with position ids that restart at each row, without
            a change of the model's outputs.
        reason: why not, as the end of a sentence; empty if it packs.
        mrope: whether the model takes three position ids per token: time, height and width.
    """

    packs: bool
    reason: str = ""
    mrope: bool = False


PACKS, PACKS_MROPE = Family(packs=True), Family(packs=True, mrope=True)
LINEAR = Family(packs=False, reason="its linear attention carries state from one packed row to the next", mrope=True)
UNKNOWN = Family(packs=False, reason="it is not known whether its model can take packed rows")

BY_CLASS = {
    "AyaVisionProcessor": PACKS,
    "Gemma3Processor": Family(packs=False, reason="its image tokens attend to later tokens of the sequence"),
    "Gemma4Processor": PACKS,
    "Glm4vProcessor": PACKS_MROPE,
    "Idefics3Processor": PACKS,
    "InternVLProcessor": PACKS,
    "LlavaNextProcessor": PACKS,
    "LlavaOnevisionProcessor": PACKS,
    "LlavaProcessor": PACKS,
    "MllamaProcessor": Family(packs=False, reason="its cross attention has one mask for all images of a sequence"),
    "Phi4MultimodalProcessor": PACKS,
    "PixtralProcessor": PACKS,
    "Qwen2VLProcessor": PACKS_MROPE,
    "Qwen2_5_VLProcessor": PACKS_MROPE,
    "Qwen3VLProcessor": PACKS_MROPE,
    "SmolVLMProcessor": PACKS,
}
"""Processor classes of transformers whose models were compared, packed and unpacked."""

BY_MODEL = {"qwen3_5": LINEAR, "qwen3_5_moe": LINEAR}
"""Model types that share a processor class with models of another kind."""


def family(processor_class: str, model_type: str | None = None) -> Family:
    """Return what is known of a processor's models.

    Args:
        processor_class: name of the processor's class, such as `Qwen3VLProcessor`.
        model_type: `model_type` of the model's `config.json`, if known. Qwen3-VL and Qwen3.5 have the same processor
            class, and only Qwen3-VL packs: without the model type, they count as Qwen3-VL.
    """
    return BY_MODEL.get(model_type or "") or BY_CLASS.get(processor_class, UNKNOWN)
