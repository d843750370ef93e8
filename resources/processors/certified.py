"""A processor with its certificate: what the stages and loaders know of it without loading transformers."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from tokenloom.resources.digest import digest_bytes, digest_json

if TYPE_CHECKING:
    from tokenloom.resources.processors.processor import Processor

CERTIFICATE = "image_certificate.json"
"""The file with `ImageTokens` next to those of a tokenizer."""

VERSION = 1
"""Increase this when the certificate or what it certifies changes."""

_LIBRARIES = ("transformers", "pillow", "numpy", "tokenizers")


@dataclass(frozen=True)
class ImageTokens:
    """What a certified processor makes of images.

    Args:
        processor: name of its class.
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
    """

    processor: str
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

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, content: bytes | str) -> ImageTokens:
        """Return what `to_bytes` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            return cls(**json.loads(content))
        except (TypeError, AttributeError) as error:
            raise ValueError(f"{CERTIFICATE} is not a certificate: {error}") from error


class Cache(Protocol):
    """Keeps certificates, as a store keeps probes."""

    def get(self, stage: str, version: int, libraries: Mapping[str, str]) -> str | None: ...
    def put(self, stage: str, version: int, libraries: Mapping[str, str], probe: str) -> None: ...


@dataclass
class CertifiedProcessor:
    """A processor, not loaded yet.

    Args:
        files: its files and the tokenizer's.
        cache: where certificates are kept, so that an unchanged build loads nothing.
    """

    files: dict[str, bytes] = field(repr=False)
    cache: Cache | None = None

    @cached_property
    def digest(self) -> str:
        """Digest of the files."""
        return digest_json({name: digest_bytes(content) for name, content in self.files.items()})

    @cached_property
    def tokens(self) -> ImageTokens:
        """The certificate.

        Raises:
            ProcessorError: the processor cannot be used.
        """
        versions = {"files": self.digest, **{name: metadata.version(name) for name in _LIBRARIES}}
        known = self.cache.get("processor", VERSION, versions) if self.cache else None
        if known is not None:
            return ImageTokens.from_bytes(known)
        found = image_tokens(self.processor)
        if self.cache:
            self.cache.put("processor", VERSION, versions, found.to_bytes().decode())
        return found

    @property
    def processor(self) -> Processor:
        """The loaded processor.

        Raises:
            ProcessorError: it cannot be loaded.
        """
        return loaded(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cache": None}

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CertifiedProcessor) and self.digest == other.digest


_LOADING = Lock()


def loaded(processor: CertifiedProcessor) -> Processor:
    """Return a processor, loaded once per process."""
    with _LOADING:
        return _loaded(processor)


@lru_cache(4)
def _loaded(given: CertifiedProcessor) -> Processor:
    from tokenloom.resources.processors.processor import Certificate, Processor

    folder = Path(tempfile.mkdtemp(prefix="tokenloom-processor-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, content in given.files.items():
        if name != CERTIFICATE:
            (folder / name).write_bytes(content)
    certificate = None
    if CERTIFICATE in given.files:
        known = ImageTokens.from_bytes(given.files[CERTIFICATE])
        certificate = Certificate(known.rules, tuple(known.type_ids), known.by_count)
    return Processor.load(folder, certificate)


def image_tokens(processor: Processor) -> ImageTokens:
    """Certify a processor.

    Raises:
        ProcessorError: it cannot be used.
    """
    from tokenloom.resources.processors.certificate import SINGLE

    certificate, family = processor.certify(), processor.family
    sizes = [processor.expansion(*size, images) for size in SINGLE for images in (1, 2)]
    return ImageTokens(
        processor=processor.name,
        token=processor.image_token,
        token_id=processor.image_token_id,
        ids=processor.image_token_ids,
        before=processor.before,
        after=processor.after,
        rules=certificate.rules,
        type_ids=list(certificate.type_ids),
        by_count=certificate.by_count,
        packs=family.packs,
        reason=family.reason,
        mrope=family.mrope,
        merge=int(getattr(processor.loaded.image_processor, "merge_size", 1) or 1),
        expansions=digest_json([[each.ids.tolist(), each.patches] for each in sizes]),
    )
