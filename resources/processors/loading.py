"""Loads a processor from a folder with transformers, also where torchvision is not installed."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
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
