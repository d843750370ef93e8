"""Loads a processor from a folder with transformers, also where torchvision is not installed."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenloom.resources.exceptions import causes, first_line

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


class ProcessorError(ValueError):
    """A processor that cannot be used, or an image size that it rejects. The text is one sentence."""


def load_processor(folder: Path) -> Any:
    """Load a transformers processor for images from a folder that has its files and the tokenizer's.

    Only local files are read and no code from the folder is run. Without torchvision, image processors use Pillow, and
    a processor for images and videos is loaded without its video processor.

    Raises:
        ProcessorError: the files are missing or damaged, the processor is not known to transformers, is not for images,
            or needs a library that is not installed.
    """
    try:
        import transformers
        from transformers.utils.import_utils import is_torchvision_available, is_vision_available
    except ImportError:
        raise ProcessorError("processors need transformers; install it with `pip install tokenloom[vision]`") from None
    if not is_vision_available():
        raise ProcessorError("processors need Pillow; install it with `pip install tokenloom[vision]`")
    name = class_name(folder)
    loaded: Any = getattr(transformers, name, None)
    try:
        parts = loaded.get_attributes() if isinstance(loaded, type) and hasattr(loaded, "get_attributes") else None
        if parts is None:
            raise ProcessorError(
                f"{name} in {folder} is not a processor of transformers {transformers.__version__}; "
                "update transformers, or use a model whose processor is part of it (code from the hub is not run)"
            )
        if "image_processor" not in parts:
            raise ProcessorError(
                f"{name} in {folder} does not process images; use the processor of an image-text model"
            )
        if "video_processor" in parts and not is_torchvision_available():
            loaded = _without_video(loaded)
        processor = loaded.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except ProcessorError:
        raise
    except Exception as error:
        missing = next((cause for cause in causes(error) if isinstance(cause, ImportError)), None)
        if missing is not None:
            raise ProcessorError(f"{name} needs a library that is not installed: {_sentence(missing)}") from error
        raise ProcessorError(f"{name} cannot be loaded from {folder}: {_sentence(error)}") from error
    if not all(hasattr(processor, method) for method in IMAGE_METHODS):
        raise ProcessorError(
            f"{name} of transformers {transformers.__version__} does not report how it expands image tokens; "
            "update transformers to 5.23 or later"
        )
    return processor


def class_name(folder: Path) -> str:
    """Return the name of the processor class that a folder's files name, or that belongs to its model type."""
    for file in CLASS_FILES:
        if name := _content(folder / file).get("processor_class"):
            return str(name)
    if kind := model_type(folder):
        from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES  # pyright: ignore[reportPrivateImportUsage]

        if name := PROCESSOR_MAPPING_NAMES.get(kind):
            return str(name)
    raise ProcessorError(f"no file in {folder} names a processor class; add the model's preprocessor_config.json")


def model_type(folder: Path) -> str | None:
    """Return the `model_type` of a folder's `config.json`, or None if it has none."""
    kind = _content(folder / "config.json").get("model_type")
    return kind if isinstance(kind, str) else None


def _sentence(error: BaseException) -> str:
    """Return the first sentence of an exception's text, in one line."""
    return " ".join(str(error).split()).partition(". ")[0].removesuffix(".") or type(error).__name__


def _content(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ProcessorError(f"{path} is not valid JSON: {first_line(error)}") from None
    return content if isinstance(content, dict) else {}


@cache
def _without_video(loaded: type) -> type:
    """Return a subclass of a processor class that has no video processor, which only torchvision can run."""

    class Loaded(loaded):
        video_processor_class = "NoVideoProcessor"

        @staticmethod
        def get_possibly_dynamic_module(module_name: str) -> Any:
            return _NoVideo if module_name == "NoVideoProcessor" else loaded.get_possibly_dynamic_module(module_name)  # pyright: ignore[reportAttributeAccessIssue]

        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if argument is not None:
                return super().check_argument_for_proper_class(argument_name, argument)  # pyright: ignore[reportAttributeAccessIssue]
            return None

    Loaded.__name__ = Loaded.__qualname__ = loaded.__name__
    Loaded.__module__ = loaded.__module__
    return Loaded


class _NoVideo:
    """Stands for the video processor's class; loading it gives None."""

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> None:
        return None
