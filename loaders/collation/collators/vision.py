"""Vision collators: convert images to one size and color mode, stack and normalize them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from tokenloom.errors import DataValidationError
from tokenloom.loaders.collation.collators.default import DefaultCollator
from tokenloom.loaders.collation.collators.images import ColorMode, image_tensor, in_color_mode, resized, unit_range
from tokenloom.loaders.collation.row_columns import column_names
from tokenloom.loaders.collation.task_spec import TaskSpec

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
        known = None if named is False else NORMALIZATIONS[named]
        if mean is not None and std is not None:
            known = _channels("mean", mean), _channels("std", std)
            if min(known[1]) <= 0:
                raise ValueError(f"std must be above 0, got {std}")
        if mode not in (None, "rgb", "greyscale"):
            raise ValueError(f"mode must be 'rgb' or 'greyscale', got {mode!r}")
        size = (size, size) if isinstance(size, int) else size
        if size is not None and (len(size) != 2 or min(size) < 1):
            raise ValueError(f"size must be a height and a width of at least 1, got {size}")
        self.normalization, self.size = known, None if size is None else (size[0], size[1])
        self.mode: ColorMode | None = mode
        self.image_column, self.label_column = image_column, label_column

    def __call__(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Return a batch of `pixel_values`, int64 or float32 `labels` [rows, …] if there are any, and other columns."""
        rows = [row if isinstance(row, Mapping) else self._named(row) for row in rows]
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
                batch["pixel_values"] = self._normalized(self._stacked(name, values))
            elif name == label_column:
                batch["labels"] = _labels(name, values)
            else:
                batch[name] = DefaultCollator()(values)
        return batch

    def _named(self, row: Any) -> dict[str, Any]:
        names = (self.image_column or IMAGE_COLUMNS[0], self.label_column or LABEL_COLUMNS[0])
        return dict(zip(names, row, strict=False)) if isinstance(row, tuple) and len(row) <= 2 else {names[0]: row}

    def _stacked(self, name: str, values: Sequence[Any]) -> torch.Tensor:
        """Return the images as float32 [rows, channels, height, width]."""
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

    def _normalized(self, pixels: torch.Tensor) -> torch.Tensor:
        if self.normalization is None:
            return pixels
        mean, std = (_of_channels(values, pixels) for values in self.normalization)
        return pixels.sub_(mean).div_(std)


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
    """Return one number, or three."""
    numbers = (float(values),) if isinstance(values, int | float) else tuple(map(float, values))
    if len(numbers) not in (1, 3):
        raise ValueError(f"{name} must be one number, or one for each of 3 channels, got {len(numbers)} numbers")
    return numbers


def _of_channels(values: Sequence[float], pixels: torch.Tensor) -> torch.Tensor:
    """Return the values as [channels, 1, 1]; their mean, if there are more values than channels."""
    known = pixels.new_tensor(values)
    return (known.mean()[None] if pixels.shape[1] < len(known) else known)[:, None, None]


def _labels(name: str, values: Sequence[Any]) -> torch.Tensor:
    labels = DefaultCollator()(values)
    if not isinstance(labels, torch.Tensor):
        raise DataValidationError(f"labels {name!r} must be numbers; map each class to a number first")
    return labels.to(torch.float32) if labels.is_floating_point() else labels.to(torch.int64)
