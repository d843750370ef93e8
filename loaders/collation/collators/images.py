"""Converts arrays, tensors, PIL images and encoded bytes to image tensors [channels, height, width]."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch

from tokenloom.errors import install_command

ColorMode = Literal["rgb", "greyscale"]

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey (ITU-R BT.601), as in PIL."""


def image_tensor(image: Any) -> torch.Tensor:
    """Return an image as a tensor [1 or 3, height, width] in the image's dtype.

    Args:
        image: a tensor or array with 1 or 3 channels, first or last, or [height, width]; if both are possible, channels
            are first in tensors and last in arrays. Or a PIL image, the bytes of an image file, or a dict with such
            `bytes` or a `path`, as datasets returns undecoded images. Palette and CMYK images and images with
            transparency are converted to RGB, and files are rotated to their EXIF orientation.

    Raises:
        ValueError: it is none of these, or cannot be decoded.
    """
    if isinstance(image, torch.Tensor):
        return _channels_first(image, "first")
    if isinstance(image, Mapping) and image.keys() & {"bytes", "path"}:
        image = image["bytes"] if image.get("bytes") is not None else open_image(image.get("path"))
    if isinstance(image, bytes | bytearray | memoryview):
        image = open_image(io.BytesIO(image))
    if hasattr(image, "getbands"):
        image = _plain(image)
    array = np.asarray(image)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"must be an array, tensor, PIL image or the bytes of an image, got {type(image).__name__}")
    return _channels_first(torch.from_numpy(array if array.flags.writeable else array.copy()), "last")


def open_image(file: Any) -> Any:
    """Open an image file with PIL, rotated to its EXIF orientation.

    Args:
        file: a path or an open file.

    Raises:
        ValueError: the file cannot be decoded, or Pillow is not installed.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ValueError(f"is an encoded image, which needs Pillow; run: {install_command('PIL')}") from None
    try:
        return ImageOps.exif_transpose(Image.open(file))
    except (OSError, SyntaxError, TypeError, AttributeError, Image.DecompressionBombError) as error:
        raise ValueError(f"cannot be decoded: {error}") from None


def _plain(image: Any) -> Any:
    """Convert a PIL image to one channel or RGB, unless it is already."""
    if image.mode in ("RGB", "L", "F") or image.mode.startswith("I;16"):
        return image
    return image.convert("L" if image.mode in ("1", "LA", "La") else "RGB")


def _channels_first(image: torch.Tensor, preferred: Literal["first", "last"]) -> torch.Tensor:
    if image.ndim == 2:
        return image[None]
    if image.ndim == 3:
        first, last = image.shape[0] in (1, 3), image.shape[2] in (1, 3)
        if first and (preferred == "first" or not last):
            return image
        if last:
            return image.permute(2, 0, 1)
    shape = list(image.shape)
    raise ValueError(f"must be [height, width], or with 1 or 3 channels first or last, got shape {shape}")


def unit_range(image: torch.Tensor) -> torch.Tensor:
    """Return an image as float32, with integers scaled to 0 to 1 and floats unchanged.

    Unsigned integers are divided by their dtype's maximum, signed ones by 255.

    Raises:
        ValueError: signed integers are not between 0 and 255.
    """
    if image.is_floating_point():
        return image.to(torch.float32)
    top = 1 if image.dtype == torch.bool else torch.iinfo(image.dtype).max
    if image.dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        top = 255
        if image.numel() and (int(image.min()) < 0 or int(image.max()) > top):
            raise ValueError(
                f"{image.dtype} values must be between 0 and 255, got {int(image.min())} to {int(image.max())}"
            )
    return image.to(torch.float32).div_(top)


def in_color_mode(images: torch.Tensor, mode: ColorMode | None) -> torch.Tensor:
    """Return images with 3 channels for `rgb` or 1 for `greyscale`; None: unchanged.

    Args:
        images: float [..., channels, height, width].
    """
    channels = images.shape[-3]
    if mode == "rgb" and channels == 1:
        return images.expand(*images.shape[:-3], 3, *images.shape[-2:])
    if mode == "greyscale" and channels == 3:
        return torch.einsum("...chw,c->...hw", images, images.new_tensor(LUMA)).unsqueeze(-3)
    return images


def resized(image: torch.Tensor, size: tuple[int, int] | None) -> torch.Tensor:
    """Return an image stretched to (height, width), bilinear with antialiasing; None: unchanged.

    Args:
        image: float [channels, height, width].
    """
    if size is None or tuple(image.shape[1:]) == size:
        return image
    return torch.nn.functional.interpolate(image[None], size=size, mode="bilinear", antialias=True)[0]
