"""Images among the tokens of a row: which tokens are of which image, and the mark that is shown in place of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenloom.resources.processors.certified import CERTIFICATE, ImageTokens
from tokenloom.resources.store.objects import MEDIA


@dataclass(frozen=True)
class ShownImage:
    """An image of a row.

    Args:
        media: the digest of its bytes.
        width, height: in pixels.
    """

    media: str
    width: int
    height: int

    @classmethod
    def of(cls, image: Mapping[str, Any]) -> ShownImage:
        """Return an image of a row's `media`."""
        return cls(image[MEDIA], image["width"], image["height"])

    def mark(self, tokens: int = 0) -> str:
        """Return what is shown in place of the image.

        Args:
            tokens: the number of its tokens; 0: it has none yet.
        """
        return f"[image {self.width:,}×{self.height:,}{f', {counted(tokens)}' if tokens else ''}]"


def counted(tokens: int) -> str:
    """Return a number of tokens in words."""
    return f"{tokens:,} {'token' if tokens == 1 else 'tokens'}"


def image_ids(folder: Path) -> list[int]:
    """Return the ids of the tokens of images, given the folder of a stored tokenizer; none without a processor."""
    file = folder / CERTIFICATE
    return ImageTokens.from_bytes(file.read_bytes()).ids if file.is_file() else []


def image_places(ids: np.ndarray, tokens_of_images: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first token of each image of a sequence, and the token after its last.

    The first and last tokens of an image can be others than `tokens_of_images`: as many before as after these, or one
    more, such as `<fake_token_around_image><global-img>` and `<fake_token_around_image>`.

    Args:
        ids: int [length].
        tokens_of_images: ids that only images have.
        counts: the number of tokens of each image, in order.
    """
    places = np.flatnonzero(np.isin(ids, tokens_of_images))
    for count in counts:
        if not len(places):
            return
        inside = places[places < places[0] + count]
        around = count - int(inside[-1] - inside[0] + 1)
        start = max(int(inside[0]) - (around + 1) // 2, 0)
        yield start, min(start + count, len(ids))
        places = places[len(inside) :]
