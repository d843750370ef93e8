"""Image inputs of batches: the images of a batch's rows as the model takes them, made by the image processor from the
bytes in the store; and a folder that keeps them, so that a later epoch neither decodes nor resizes them again.

In the folder, each image has one file: arrays one after the other, each at a multiple of 64 bytes and integers as bytes
if they fit, a JSON description, the length of that, and a digest of all, which is checked when a process first reads
the file. Files are written under another name and then renamed, so that processes can share a folder.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from mmap import ACCESS_READ, mmap
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from torch.utils.data import get_worker_info

from tokenloom.errors import ConfigError, StoreError
from tokenloom.loaders.reading.batch import Batch, Flags
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.engines.engine import cpu_count
from tokenloom.resources.images.image_file import ImageProblem, open_image
from tokenloom.resources.processors.certificate import CERTIFICATE, ImageTokens
from tokenloom.resources.processors.features import combine
from tokenloom.resources.processors.processor import PROCESSOR_FILES, ProcessorError
from tokenloom.resources.store.blobs.blobs import DIGEST_CHARACTERS
from tokenloom.resources.store.blobs.file_cache import parse_size
from tokenloom.resources.tables.ragged import Ints, one_array
from tokenloom.resources.tables.sequence_schema import MEDIA

if TYPE_CHECKING:
    from tokenloom.resources.processors.processor import Processor

FOLDER, SIZE, DEFAULT_SIZE = "TOKENLOOM_IMAGE_CACHE", "TOKENLOOM_IMAGE_CACHE_SIZE", "100GB"

_ALIGNED = 64
_TAIL = 8 + DIGEST_CHARACTERS
_COUNTED = 256
"""New files after which other processes' files are counted again."""


class ImageCache:
    """Keeps arrays in a folder, up to a total size; then it keeps what it has.

    Args:
        folder: where the files are; created if it does not exist.
        limit: total size in bytes.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int):
        self.folder, self.limit = Path(folder), limit
        self._size, self._new, self._lock = -1, 0, Lock()
        self._checked: set[str] = set()

    @classmethod
    def from_environment(cls) -> ImageCache | None:
        """Open the cache in `$TOKENLOOM_IMAGE_CACHE`, limited by `$TOKENLOOM_IMAGE_CACHE_SIZE`; None if it is not set.

        Raises:
            ConfigError: the limit is not a size.
        """
        if not (folder := os.environ.get(FOLDER)):
            return None
        size = os.environ.get(SIZE) or DEFAULT_SIZE
        try:
            return cls(Path(folder).expanduser(), parse_size(size))
        except ValueError:
            raise ConfigError.at(SIZE, f"must be a size such as {DEFAULT_SIZE}, got {size!r}") from None

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "limit": self.limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def get(self, key: str) -> dict[str, npt.NDArray[Any]] | None:
        """Return the arrays of a key, memory-mapped; None if they are not there, or damaged."""
        try:
            with self._file(key).open("rb") as file:
                data = np.frombuffer(mmap(file.fileno(), 0, access=ACCESS_READ), np.uint8)
            if key not in self._checked:
                if digest_bytes(data[:-DIGEST_CHARACTERS].data) != data[-DIGEST_CHARACTERS:].tobytes().decode():
                    return None
                self._checked.add(key)
            size = int(np.frombuffer(data[-_TAIL:-DIGEST_CHARACTERS], np.int64)[0])
            described = json.loads(data[-_TAIL - size : -_TAIL].tobytes())
            return {
                name: np.frombuffer(data[begin : begin + length], kept).reshape(shape).astype(kind, copy=False)
                for name, (begin, length, kept, kind, shape) in described.items()
            }
        except (OSError, ValueError, TypeError, AttributeError, IndexError):
            return None

    def put(self, key: str, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Keep the arrays of a key, if there is room. A folder that cannot be written keeps nothing."""
        described, parts, at = dict[str, Any](), list[bytes](), 0
        for name, given in arrays.items():
            # masks of pixels are int64
            fits = given.dtype.kind == "i" and given.size and given.min() >= 0 and given.max() < 256
            array = given.astype(np.uint8) if fits else given
            described[name] = [at, array.nbytes, array.dtype.str, given.dtype.str, list(array.shape)]
            padding = -array.nbytes % _ALIGNED
            parts += [array.tobytes(), bytes(padding)]
            at += array.nbytes + padding
        tail = json.dumps(described).encode()
        content = b"".join([*parts, tail, np.int64(len(tail)).tobytes()])
        with suppress(OSError):
            if not self._has_room(len(content) + DIGEST_CHARACTERS):
                return
            temporary = self.folder / f".{uuid.uuid4().hex}"
            try:
                with temporary.open("wb") as file:
                    file.writelines([content, digest_bytes(content).encode()])
                temporary.replace(self._file(key))
            finally:
                temporary.unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.inputs"

    def _has_room(self, size: int) -> bool:
        """Return whether a file of a size fits, and count it."""
        with self._lock:
            # listing the folder for each file would be slower than making the inputs
            if self._size < 0 or self._new >= _COUNTED:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._size, self._new = sum(file.stat().st_size for file in self.folder.glob("*.inputs")), 0
            if self._size + size > self.limit:
                return False
            self._size += size
            self._new += 1
            return True


Features = dict[str, npt.NDArray[Any]]
"""Model inputs of one image."""

MOST_PIXELS = 178_956_970
"""The most that `dataset.media.max_pixels` allows, and that Pillow decodes."""


@dataclass(frozen=True)
class ImageSource:
    """The image processor of a dataset. It can be pickled.

    Args:
        folder: the folder with its files, the tokenizer's and its certificate.
    """

    folder: Path

    @cached_property
    def tokens(self) -> ImageTokens:
        """What the processor makes of images.

        Raises:
            StoreError: the certificate is missing or damaged.
        """
        try:
            return ImageTokens.from_bytes((self.folder / CERTIFICATE).read_bytes())
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.folder / CERTIFICATE} cannot be read: {error}; build the dataset again") from error

    @cached_property
    def digest(self) -> str:
        """Digest of the processor's files and its certificate. Chat templates do not count: they decide about ids. Nor
        do versions of libraries: the certificate has the pixels that they make."""
        files = [self.folder / name for name in PROCESSOR_FILES if not name.startswith("chat_template")]
        found = {file.name: digest_bytes(file.read_bytes()) for file in files if file.is_file()}
        return digest_json(found | {CERTIFICATE: digest_bytes(replace(self.tokens, decoders="").to_bytes())})

    @cached_property
    def processor(self) -> Processor:
        """The loaded processor.

        Raises:
            StoreError: it cannot be loaded.
        """
        from tokenloom.resources.processors.processor import Processor

        tokens = self.tokens
        try:
            return Processor.load(self.folder, tokens)
        except ProcessorError as error:
            raise StoreError(f"the image processor of the dataset cannot be used: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder}


class SequenceImages:
    """The images of all chunks.

    Args:
        source: the image processor; of several datasets, that of all.
        read: returns the bytes of an image, given the chunk of its row and its digest.
        cache: where the model inputs of images are kept, or None.
    """

    def __init__(self, source: ImageSource, read: Callable[[int, str], bytes], cache: ImageCache | None = None):
        self.source, self.read, self.cache = source, read, cache
        self._held: dict[int, pa.Array] = {}
        self._memory = _Memory()

    def hold(self, chunk: int, table: pa.Table) -> None:
        """Register the images of a chunk's sequences."""
        if MEDIA in table.column_names:
            self._held[chunk] = one_array(table[MEDIA])

    def release(self, chunk: int) -> None:
        """Drop what is held of a chunk."""
        self._held.pop(chunk, None)

    def add_to(self, batch: Batch, chunks: Ints, local: Ints, real: Flags | None) -> None:
        """Add the image inputs of a batch's rows, type ids, and for packed rows three-dimensional positions.

        Args:
            chunks, local: int64 [rows], the chunk of each row, and its index within the chunk.
            real: bool [rows], False for padding rows; None: all rows are real.
        """
        tokens = self.source.tokens
        documents = list[list[Features]]()
        named = list[list[list[str]]]()  # digests of each row's images, by document; documents without images omitted
        for row, (chunk, index) in enumerate(zip(chunks.tolist(), local.tolist(), strict=True)):
            images = self._images(chunk, index) if real is None or real[row] else []
            named.append([[image[MEDIA] for image in of] for _, of in groupby(images, lambda image: image["document"])])
        wanted = [
            (digest, chunk, len(images))
            for chunk, row in zip(chunks.tolist(), named, strict=True)
            for images in row
            for digest in images
        ]
        features = iter(self._features(wanted))
        for row in named:
            documents += [[next(features) for _ in images] for images in row] or [[]]
        if wanted:
            batch.update(combine(documents, tokens.rules, tokens.levels, self._memory.empty, _in_threads))
        for side in [name.removesuffix("input_ids") for name in batch if name.endswith("input_ids")]:
            is_image = np.isin(batch[f"{side}input_ids"], tokens.ids).astype(np.int64)
            batch.update({f"{side}{name}": is_image for name in tokens.type_ids})
        if tokens.mrope and "position_ids" in batch:
            batch["position_ids"] = self._positions(batch)

    def digests(self, chunk: int, index: int) -> list[str]:
        """Return the digests of a row's images."""
        return [image[MEDIA] for image in self._images(chunk, index)]

    def _images(self, chunk: int, index: int) -> list[dict[str, Any]]:
        held = self._held.get(chunk)
        return held[index].as_py() if held is not None else []

    def _features(self, wanted: Sequence[tuple[str, int, int]]) -> list[Features]:
        """Return the model inputs of images, given their digests, chunks and numbers of images in their documents."""
        by_count = self.source.tokens.by_count
        # an image is made once per batch; with some processors, another one of several in a document
        different = {(digest, count > 1 and by_count): chunk for digest, chunk, count in wanted}
        cached = {} if self.cache is None else {key: self.cache.get(self._key(*key)) for key in different}
        features = {key: inputs for key, inputs in cached.items() if inputs is not None}
        keys = [key for key in different if key not in features]
        computed = _in_threads(lambda key: self._made(key[0], different[key], key[1]), keys)
        features |= dict(zip(keys, computed, strict=True))
        return [features[digest, count > 1 and by_count] for digest, _, count in wanted]

    def _key(self, digest: str, several: bool) -> str:
        return f"{digest}-{self.source.digest[:16]}{'-several' * several}"

    def _made(self, digest: str, chunk: int, several: bool) -> Features:
        try:
            image = open_image(self.read(chunk, digest), MOST_PIXELS)
            features = self.source.processor.features(image, 1 + several)
        except (ImageProblem, ProcessorError) as error:
            raise StoreError(f"image {digest} cannot be used: {error}; build the dataset again") from error
        if self.cache is not None:
            self.cache.put(self._key(digest, several), features)
        return features

    def _positions(self, batch: Batch) -> Ints:
        """Return int64 [4, rows, width]: positions within documents, and their time, height and width."""
        from tokenloom.resources.processors.features import mrope_positions

        ids, bounds, tokens = np.asarray(batch["input_ids"]), np.asarray(batch["cu_seqlens"]), self.source.tokens
        grids = batch.get("image_grid_thw", np.zeros((0, 3), np.int64))
        flat = mrope_positions(ids.reshape(-1), np.diff(bounds), grids, tokens.merge, tokens.token_id)
        text = np.asarray(batch["position_ids"])
        return np.stack([text, *flat.reshape(3, *ids.shape)])


class _Memory:
    """Memory of batches, used again once nothing refers to it: the system zeroes new memory, page by page."""

    def __init__(self) -> None:
        self._free = deque[npt.NDArray[np.float32]](maxlen=2)

    def empty(self, shape: tuple[int, ...], dtype: type[np.float32]) -> npt.NDArray[np.float32]:
        size, memory = int(np.prod(shape, dtype=np.int64)), None
        with suppress(IndexError):
            memory = self._free.pop()
        if memory is None or len(memory) < size:
            memory = np.empty(size + size // 8, dtype)
        # Views and tensors of this array keep it alive, but not `memory`: NumPy looks for an array's owner only among
        # arrays.
        array = np.frombuffer(memory.data, dtype, size)
        finalize(array, self._free.append, memory).atexit = False
        return array.reshape(shape)


def _in_threads(function: Callable[..., Any], *each: Sequence[Any]) -> list[Any]:
    """Map a function, in several threads unless this is a worker process of several."""
    if len(each[0]) < 2 or get_worker_info() is not None:
        return list(map(function, *each))
    return list(_threads(os.getpid()).map(function, *each))


@lru_cache(1)
def _threads(_process: int) -> ThreadPoolExecutor:
    """Return the threads of a process. They are kept: new ones would take new memory from the system for each batch."""
    return ThreadPoolExecutor(cpu_count(), "tokenloom-images")
