"""A stand-in for torchvision, for the image processors of transformers that need it: no working build is installed.

`install` must run before transformers is imported. Its functions are those of torch with the names of torchvision, so
that a processor's own code runs; its pixels need not be torchvision's.
"""

from __future__ import annotations

import sys
from enum import Enum
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.nn import functional


class InterpolationMode(Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def resize(image: Any, size: Any, interpolation: Any = InterpolationMode.BILINEAR, antialias: bool = True) -> Any:
    batch = image if image.ndim == 4 else image[None]
    mode = {"bicubic": "bicubic", "lanczos": "bicubic"}.get(interpolation.value, "bilinear")
    found = functional.interpolate(batch.float(), tuple(size), mode=mode, antialias=antialias)
    found = found if image.is_floating_point() else found.round().clamp(0, 255).to(image.dtype)
    return found if image.ndim == 4 else found[0]


def pad(image: Any, padding: Any, fill: Any = 0, padding_mode: str = "constant") -> Any:
    left, top, right, bottom = padding
    value = fill[0] if isinstance(fill, list | tuple) else fill
    return functional.pad(image, (left, right, top, bottom), value=value)


def normalize(image: Any, mean: Any, std: Any, inplace: bool = False) -> Any:
    mean, std = (torch.as_tensor(values, dtype=image.dtype)[:, None, None] for values in (mean, std))
    return (image - mean) / std


def crop(image: Any, top: int, left: int, height: int, width: int) -> Any:
    return image[..., top : top + height, left : left + width]


def to_dtype(image: Any, dtype: Any, scale: bool = False) -> Any:
    return image.to(dtype) / 255 if scale else image.to(dtype)


def grayscale_to_rgb(image: Any) -> Any:
    return image.expand(*image.shape[:-3], 3, *image.shape[-2:])


def pil_to_tensor(image: Any) -> Any:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def install() -> None:
    """Make the stand-in importable as torchvision."""
    here = vars(sys.modules[__name__])
    functions = {name: here[name] for name in ("resize", "pad", "normalize", "crop", "to_dtype", "grayscale_to_rgb")}
    functions |= {"pil_to_tensor": pil_to_tensor, "InterpolationMode": InterpolationMode}
    names = ("", ".io", ".transforms", ".transforms.functional", ".transforms.v2", ".transforms.v2.functional")
    for name in (f"torchvision{part}" for part in names):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        vars(module).update(functions, __version__="0.28.0")
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)
