"""Image processors that compute shapes and no pixels, to find out quickly how an image of some size is expanded."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt


def black(height: int, width: int, channels: int = 3) -> npt.NDArray[np.uint8]:
    """Return a black image [channels, height, width] that takes no memory for its pixels."""
    return np.broadcast_to(np.zeros((), np.uint8), (channels, height, width))


def shape_only(processor: Any) -> Any:
    """Return a copy of a transformers processor whose image processor replaces each image by a black one.

    Image processors that use Pillow neither read nor resize pixels, and take images of one channel. Others are returned
    unchanged.
    """
    from transformers.image_processing_backends import PilBackend

    if not isinstance(processor.image_processor, PilBackend):
        return processor
    result, images = copy.copy(processor), copy.copy(processor.image_processor)
    images.__class__ = _without_pixels(type(images))
    result.image_processor = images
    return result


@cache
def _without_pixels(images: type) -> type:
    """Return a subclass whose basic operations only compute shapes.

    `Shapes` is a subclass of `PilBackend`, so that it comes directly before it in the order in which methods are
    looked up: operations that a family redefines still run, and reach `Shapes` where they call the basic ones.
    """
    from transformers.image_processing_backends import PilBackend
    from transformers.image_transforms import get_resize_output_image_size, get_size_with_aspect_ratio
    from transformers.image_utils import get_image_size_for_max_height_width

    class Shapes(PilBackend):
        def process_image(self, image: Any, *_: Any, **__: Any) -> Any:
            return image

        def resize(self, image: Any, size: Any, *_: Any, **__: Any) -> Any:
            edges = image.shape[-2:]
            if size.shortest_edge and size.longest_edge:
                height, width = get_size_with_aspect_ratio(edges, size.shortest_edge, size.longest_edge)
            elif size.shortest_edge:
                height, width = get_resize_output_image_size(
                    image, size=size.shortest_edge, default_to_square=False, input_data_format="channels_first"
                )
            elif size.max_height and size.max_width:
                height, width = get_image_size_for_max_height_width(edges, size.max_height, size.max_width)
            else:
                height, width = size.height, size.width
            if min(height, width) < 1:
                raise ValueError(f"the image is resized to {width}x{height} pixels")
            return black(height, width, len(image))

        def rescale(self, image: Any, *_: Any, **__: Any) -> Any:
            return image

        def normalize(self, image: Any, *_: Any, **__: Any) -> Any:
            return image

    return type(images.__name__, (images, Shapes), {})
