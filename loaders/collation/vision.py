"""Vision collators: convert images of any kind to one size and color mode, stack and normalize them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from tokenloom.errors import DataValidationError, install_command
from tokenloom.loaders.collation.collate import column_names
from tokenloom.loaders.collation.text import DefaultCollator, TaskSpec
from tokenloom.resources.images.image_file import decoding

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
    picture: Any = open_image(io.BytesIO(image)) if isinstance(image, bytes | bytearray | memoryview) else image
    if hasattr(picture, "getbands") and picture.mode not in ("RGB", "L", "F") and not picture.mode.startswith("I;16"):
        picture = picture.convert("L" if picture.mode in ("1", "LA", "La") else "RGB")
    array = np.asarray(picture)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"must be an array, tensor, PIL image or the bytes of an image, got {type(picture).__name__}")
    return _channels_first(torch.from_numpy(array if array.flags.writeable else array.copy()), "last")


def open_image(file: Any) -> Any:
    """Open an image file with PIL, rotated to its EXIF orientation.

    Args:
        file: a path or an open file.

    Raises:
        ValueError: the file cannot be decoded, or Pillow is not installed.
    """
    try:
        with decoding():
            from PIL import Image, ImageOps

            return ImageOps.exif_transpose(Image.open(file))
    except ModuleNotFoundError:
        raise ValueError(f"is an encoded image, which needs Pillow; run: {install_command('PIL')}") from None


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


NORMALIZATIONS = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
"""Mean and standard deviation of red, green and blue over the training images, for values from 0 to 1."""

IMAGE_COLUMNS = ("pixel_values", "image", "img")
LABEL_COLUMNS = ("labels", "label")


class VisionDataCollator:
    """Stacks images to float32 `pixel_values` [rows, channels, height, width]. It can be pickled.

    Rows are dicts with an image, or tuples (image, label) like those of torchvision's datasets. An image is an array, a
    tensor, a PIL image or the bytes of an image file, with 1 or 3 channels. Integers are scaled to 0 to 1; floats stay
    unchanged.

    Args:
        normalize: subtract the mean and divide by the standard deviation of each channel: `imagenet` (or True),
            `cifar10` or `cifar100`; False: do not normalize.
        mean, std: one number, or one per channel; they replace the named normalization. Greyscale images are normalized
            with the one number, or with the mean of the three.
        mode: convert all images to `rgb` or `greyscale`; None: they must have the same number of channels.
        size: stretch all images to this (height, width), or to a square; None: they must have the same size.
        image_column, label_column: default: `pixel_values`, `image` or `img`, and `labels` or `label`.

    Raises:
        ValueError: arguments are out of range.
        DataValidationError: when called with rows that have no image, an unreadable image, or different shapes or
            columns.
    """

    def __init__(
        self,
        normalize: bool | Literal["imagenet", "cifar10", "cifar100"] = True,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        mode: ColorMode | None = None,
        size: int | tuple[int, int] | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
    ):
        named = "imagenet" if normalize is True else normalize
        if named is not False and named not in NORMALIZATIONS:
            raise ValueError(f"normalize must be True, False or one of {', '.join(NORMALIZATIONS)}, got {normalize!r}")
        if (mean is None) != (std is None):
            raise ValueError("pass both mean and std, or neither")
        if mean is not None and named is False:
            raise ValueError("mean and std have no effect with normalize=False; remove them")
        normalization = None if named is False else NORMALIZATIONS[named]
        if mean is not None and std is not None:
            normalization = _channels("mean", mean), _channels("std", std)
            if min(normalization[1]) <= 0:
                raise ValueError(f"std must be above 0, got {std}")
        if mode not in (None, "rgb", "greyscale"):
            raise ValueError(f"mode must be 'rgb' or 'greyscale', got {mode!r}")
        size = (size, size) if isinstance(size, int) else size
        if size is not None and (len(size) != 2 or min(size) < 1):
            raise ValueError(f"size must be a height and a width of at least 1, got {size}")
        self.normalization, self.size = normalization, None if size is None else (size[0], size[1])
        self.mode: ColorMode | None = mode
        self.image_column, self.label_column = image_column, label_column

    def __call__(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Return a batch of `pixel_values`, int64 or float32 `labels` [rows, …] if there are any, and other columns."""
        usual = (self.image_column or IMAGE_COLUMNS[0], self.label_column or LABEL_COLUMNS[0])
        parts = [row if isinstance(row, tuple) and len(row) <= 2 else (row,) for row in rows]
        rows = [
            row if isinstance(row, Mapping) else dict(zip(usual, values, strict=False))
            for row, values in zip(rows, parts, strict=True)
        ]
        names = column_names(rows)
        image_column = self.image_column or next((name for name in IMAGE_COLUMNS if name in names), None)
        if image_column not in names:
            expected = image_column or " or ".join(IMAGE_COLUMNS)
            raise DataValidationError(
                f"rows have no image column {expected!r}; pass image_column=, one of {', '.join(names)}"
            )
        label_column = self.label_column or next((name for name in LABEL_COLUMNS if name in names), None)
        batch: dict[str, Any] = {}
        for name in names:
            values = [row[name] for row in rows]
            if name == image_column:
                pixels = batch["pixel_values"] = self._stacked(name, values)
                if self.normalization is not None:
                    # greyscale images take the mean of the three channels' values
                    numbers = [pixels.new_tensor(each) for each in self.normalization]
                    numbers = [each.mean()[None] if pixels.shape[1] < len(each) else each for each in numbers]
                    mean, std = (each[:, None, None] for each in numbers)
                    pixels.sub_(mean).div_(std)
            elif name == label_column:
                labels = DefaultCollator()(values)
                if not isinstance(labels, torch.Tensor):
                    raise DataValidationError(f"labels {name!r} must be numbers; map each class to a number first")
                batch["labels"] = labels.to(torch.float32 if labels.is_floating_point() else torch.int64)
            else:
                batch[name] = DefaultCollator()(values)
        return batch

    def _stacked(self, name: str, values: Sequence[Any]) -> torch.Tensor:
        images: list[torch.Tensor] = []
        for number, value in enumerate(values):
            try:
                image = image_tensor(value)
                if self.mode is not None or self.size is not None:
                    image = resized(in_color_mode(unit_range(image), self.mode), self.size)
                elif images and image.dtype != images[0].dtype:
                    raise ValueError(
                        f"has dtype {image.dtype}, but the first image has {images[0].dtype}; convert them to one dtype"
                    )
                if images and image.shape != images[0].shape:
                    raise ValueError(
                        f"has shape {list(image.shape)}, but the first image has {list(images[0].shape)}; pass size= "
                        "and mode= to give them one shape"
                    )
            except ValueError as error:
                raise DataValidationError(f"image {name!r}, row {number} of the batch: {error}") from None
            images.append(image)
        try:
            return unit_range(torch.stack(images)).contiguous()
        except ValueError as error:
            raise DataValidationError(f"images {name!r} of the batch: {error}") from None


class VisionCollator(VisionDataCollator):
    """The collator of vision tasks: a `VisionDataCollator` set up from a `TaskSpec`.

    Args:
        task_spec: its `input_fields` name the image column, its `target_field` the label column.
        options: arguments of `VisionDataCollator`; they take precedence over the task.

    Raises:
        ValueError: the task has several input fields, or arguments are out of range.
    """

    def __init__(self, task_spec: TaskSpec | None = None, **options: Any):
        if task_spec is not None:
            fields = task_spec.input_fields
            if len(fields) > 1:
                raise ValueError(
                    f"task {task_spec.name!r} has several input fields {fields}, but a vision collator reads only one"
                )
            image_column = fields[0] if fields else None
            options = {"image_column": image_column, "label_column": task_spec.target_field, **options}
        super().__init__(**options)


def _channels(name: str, values: float | Sequence[float]) -> tuple[float, ...]:
    numbers = (float(values),) if isinstance(values, int | float) else tuple(map(float, values))
    if len(numbers) not in (1, 3):
        raise ValueError(f"{name} must be one number, or one for each of 3 channels, got {len(numbers)} numbers")
    return numbers
