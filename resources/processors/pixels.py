"""The pixels that a processor makes of image files, and what they depend on: how lossy files are decoded, colours
converted and images resized differs between versions of Pillow, of the libraries in it, and of torchvision."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from importlib import import_module, metadata
from typing import Any

import numpy as np

from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.images.image_file import open_image
from tokenloom.resources.processors.features import Array

LOSSY = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4UG1RV19iZ2hnPk1xeXBk"
    "eFxlZ2P/2wBDARESEhgVGC8aGi9jQjhCY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2P/wAARCAASABgD"
    "ASIAAhEBAxEB/8QAGAABAQEBAQAAAAAAAAAAAAAAAAQFBgP/xAAfEAACAgEEAwAAAAAAAAAAAAABEQADBCExQWECEoH/xAAWAQEBAQAAAAAAAAAA"
    "AAAAAAAEBgP/xAAiEQABAwMDBQAAAAAAAAAAAAAAAQMEMkHwEiIxYYGhwdH/2gAMAwEAAhEDEQA/AOapwkgl0N5bVhcL4JqU4S0AXQ3ltOFwvgm7"
    "km2Z08GMSYZlWFsPV9CJ0NWEyvV9CIVZGpc+LlijambeTxrAFYQ5l9YArCC1iINfRBxCzwAXgFoYiIB+vshSM0n/2Q==",
    "UklGRsQAAABXRUJQVlA4ILgAAACQBQCdASoYABIAPu1or1CppaQiqAqpMB2JbACdMoR1APhsGjM/wABA98k6kHyj84ho1omgeAD+7tkT46lHVCb8"
    "kxRK38nDQ5thSoVlnk+FXqXoCjFfNc3uiu9Dx4iNuwx0xC9wPhHKHmzKkDzDGMO6wN+a26uCOEPE/gjLMaKZWigvBLaGsxKkQmdkNJgQmzcPIBmT"
    "fQgr7Tu2cm+hBXn+xIArK0L2rtE7pNyvmNw85XfaCMWTmQAA",
)
"""A JPEG, whose colours have half the size, and a WebP, in base64."""

MODES = {"1": 8, "L": 64, "LA": 128, "P": 64, "RGBA": 256, "I;16": 128, "CMYK": 256}
"""Pixel formats that are converted to RGB, and the bytes of 8 by 8 pixels."""


def decoders(torchvision: bool) -> str:
    """Return the versions of the libraries that decode images and, some of them with torchvision, resize them."""
    from PIL import __version__, features

    versions = {"Pillow": __version__, "libwebp": features.version_module("webp")}
    versions["libjpeg-turbo"] = features.version_feature("libjpeg_turbo") or features.version_codec("jpg")
    if torchvision:
        versions |= {name: import_module(name).__version__ for name in ("torch", "torchvision")}
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def installed() -> str:
    """Return a digest of the files of Pillow and torchvision, with the libraries in them, without loading these."""
    packages = [next(iter(metadata.distributions(name=name)), None) for name in ("pillow", "torchvision")]
    return digest_json([each and [each.version, each.read_text("RECORD")] for each in packages])


def pixels_digest(features: Callable[[Any], Mapping[str, Array]]) -> str:
    """Return a digest of the pixels of some image files, and of what `features` makes of images.

    Floats are rounded: machines can differ in their last bits.
    """
    from PIL import Image

    images = [open_image(b64decode(content)) for content in LOSSY]
    plain = [Image.frombytes(mode, (8, 8), bytes(range(256))[:size]) for mode, size in MODES.items()]
    plain[3].putpalette(bytes(range(256)) * 3)
    # noise shows differences between resize filters that a smooth image hides
    noise = np.arange(300 * 211 * 3, dtype=np.uint32) * np.uint32(2654435761) >> np.uint32(24)
    resized = [images[0], Image.fromarray(noise.astype(np.uint8).reshape(211, 300, 3))]
    digests = [digest_bytes(image.convert("RGB").tobytes()) for image in images + plain]
    for image in resized:
        for name, array in sorted(features(image).items()):
            exact = array if array.dtype.kind in "biu" else np.rint(array * 255).astype(np.int32)
            digests += [name, str(array.shape), digest_bytes(np.ascontiguousarray(exact).tobytes())]
    return digest_json(digests)
