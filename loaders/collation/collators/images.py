"""Images as tensors [channels, height, width]: of arrays, tensors, PIL images, and encoded bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch

ColorMode = Literal["rgb", "greyscale"]

LUMA = (0.299, 0.587, 0.114)
"""What red, green and blue add to grey (ITU-R BT.601), as in PIL."""


def image_tensor(image: Any) -> torch.Tensor:
    """An image as [1 or 3, height, width], in the dtype that it has.

    Args:
        image: a tensor (channels first where both readings fit) or array (channels last where both fit), also [height,
            width]; a PIL image; the bytes of an image file, or a dict with such `bytes` or a `path`, as datasets has
            them undecoded. Images of palettes, CMYK or with transparency become RGB, and files are turned as their
            EXIF orientation says.

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
        raise ValueError(f"is a {type(image).__name__}, not an array, tensor, PIL image or the bytes of an image")
    return _channels_first(torch.from_numpy(array if array.flags.writeable else array.copy()), "last")


def open_image(file: Any) -> Any:
    """A PIL image of a path or file, turned as its EXIF orientation says.

    Raises:
        ValueError: it cannot be decoded.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ValueError("is an encoded image, which needs Pillow: pip install 'tokenloom[vision]'") from None
    try:
        return ImageOps.exif_transpose(Image.open(file))
    except (OSError, SyntaxError, TypeError, AttributeError, Image.DecompressionBombError) as error:
        raise ValueError(f"cannot be decoded: {error}") from None


def _plain(image: Any) -> Any:
    """A PIL image of bands that are numbers of one channel, or red, green and blue."""
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
    raise ValueError(f"has shape {shape}; images are [height, width], or with 1 or 3 channels, first or last")


def unit_range(image: torch.Tensor) -> torch.Tensor:
    """float32 of 0 to 1 from integers, of which the dtype's largest is 1, or 255 of signed ones; floats as they are.

    Raises:
        ValueError: signed integers are not within 0 and 255.
    """
    if image.is_floating_point():
        return image.to(torch.float32)
    top = 1 if image.dtype == torch.bool else torch.iinfo(image.dtype).max
    if image.dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        top = 255
        if image.numel() and (int(image.min()) < 0 or int(image.max()) > top):
            raise ValueError(
                f"holds {image.dtype} from {int(image.min())} to {int(image.max())}, which must be 0 to 255"
            )
    return image.to(torch.float32).div_(top)


def in_color_mode(images: torch.Tensor, mode: ColorMode | None) -> torch.Tensor:
    """float [..., channels, height, width] with 3 channels for `rgb`, 1 for `greyscale`; None: as they are."""
    channels = images.shape[-3]
    if mode == "rgb" and channels == 1:
        return images.expand(*images.shape[:-3], 3, *images.shape[-2:])
    if mode == "greyscale" and channels == 3:
        return torch.einsum("...chw,c->...hw", images, images.new_tensor(LUMA)).unsqueeze(-3)
    return images


def resized(image: torch.Tensor, size: tuple[int, int] | None) -> torch.Tensor:
    """float [channels, height, width] stretched to (height, width): bilinear, with antialiasing. None: as it is."""
    if size is None or tuple(image.shape[1:]) == size:
        return image
    return torch.nn.functional.interpolate(image[None], size=size, mode="bilinear", antialias=True)[0]
