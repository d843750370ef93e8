"""A processor with its certificate, which is known without loading transformers if it is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.processors.image_tokens import CERTIFICATE, ImageTokens
from tokenloom.resources.processors.pixels import installed

if TYPE_CHECKING:
    from tokenloom.resources.processors.processor import Processor

VERSION = 3
"""Increase this when the certificate or what it certifies changes."""


class Cache(Protocol):
    """Keeps certificates, as a store keeps probes."""

    def recalled(self, name: str, version: int, depends: Mapping[str, str], compute: Callable[[], str]) -> str: ...


@dataclass
class CertifiedProcessor:
    """A processor, not loaded yet.

    Args:
        files: its files and the tokenizer's.
        cache: where certificates are kept, so that an unchanged build loads nothing.
    """

    files: dict[str, bytes] = field(repr=False)
    cache: Cache | None = field(default=None, compare=False)

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
        libraries = ("transformers", "numpy", "tokenizers")
        versions = {"files": self.digest, **{name: metadata.version(name) for name in libraries}}
        versions["decoders"] = installed()

        def certified() -> str:
            from tokenloom.resources.processors.certificate import certify

            return certify(self.processor).to_bytes().decode()

        if self.cache is None:
            return ImageTokens.from_bytes(certified())
        return ImageTokens.from_bytes(self.cache.recalled("processor", VERSION, versions, certified))

    @property
    def processor(self) -> Processor:
        """The processor, loaded once per process.

        Raises:
            ProcessorError: it cannot be loaded.
        """
        with _LOADING:
            return _loaded(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cache": None}

    def __hash__(self) -> int:
        return hash(self.digest)


_LOADING = Lock()


@lru_cache(4)
def _loaded(given: CertifiedProcessor) -> Processor:
    from tokenloom.resources.processors.processor import Processor

    certificate = given.files.get(CERTIFICATE)
    with TemporaryDirectory(prefix="tokenloom-processor-") as folder:
        for name, content in given.files.items():
            Path(folder, name).write_bytes(content)
        return Processor.load(Path(folder), ImageTokens.from_bytes(certificate) if certificate else None)
