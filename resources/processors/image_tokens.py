"""The certificate of an image processor: what it makes of images."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from tokenloom.resources.processors.levels import Levels

CERTIFICATE = "image_certificate.json"
"""The file with `ImageTokens` next to those of a tokenizer."""


@dataclass(frozen=True)
class ImageTokens:
    """What a certified processor makes of images.

    Args:
        processor: name of its class.
        image_processor: name of the class of its image processor, on which pixels depend.
        token, token_id: the special token that stands for one image in a text, and its id.
        ids: ids that count as image in type ids.
        before, after: text that belongs around the token of an image.
        rules: how each model input of a batch is combined.
        type_ids: names of the model inputs that tell image tokens from others.
        by_count: whether images in rows with several are expanded differently.
        packs: whether rows can be packed; else `reason` says why not.
        mrope: whether the model takes three position ids per token.
        merge: patches that one token stands for, per side, if `mrope`.
        expansions: digest of the tokens of images of some sizes.
        levels: the model inputs that are made and kept as bytes, and what the bytes stand for.
        pixels: digest of the pixels of some image files and of the model inputs made of them; "" if it is not known.
        decoders: the versions of the libraries that decoded and resized them.
    """

    processor: str
    image_processor: str
    token: str
    token_id: int
    ids: list[int]
    before: str
    after: str
    rules: dict[str, str]
    type_ids: list[str]
    by_count: bool
    packs: bool
    reason: str
    mrope: bool
    merge: int
    expansions: str
    levels: dict[str, Levels]
    pixels: str = ""
    decoders: str = ""

    def to_bytes(self) -> bytes:
        # Earlier certificates, which do not have the last fields, keep their bytes.
        values = {name: value for name, value in asdict(self).items() if value or name not in ("pixels", "decoders")}
        return json.dumps(values, sort_keys=True, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, content: bytes | str) -> ImageTokens:
        """Return what `to_bytes` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            values = json.loads(content)
            levels = {name: Levels(**written) for name, written in values.pop("levels").items()}
            return cls(**values, levels=levels)
        except (TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"{CERTIFICATE} is not a certificate: {error}") from error
