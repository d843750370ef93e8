"""Image files: read their size without decoding, check that their pixels decode, decode them to RGB.

The bytes are untrusted. Whatever they are, a function succeeds or raises `ImageProblem`, and memory is bounded by the
number of pixels and bytes. Settings of Pillow that would change which images are usable are without effect or refused.
"""

from __future__ import annotations

import io
import math
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from tokenloom.errors import TokenloomError, missing_package
from tokenloom.resources.visible import first_line

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Formats that are opened, by their names in Pillow, each read by Pillow itself without running another program. JPEG
includes MPO, a JPEG with several frames, as phones write it."""

MAX_PIXELS = 89_478_485
"""Default for the largest width times height: Pillow's own, 256 MiB of RGB. A few bytes can ask for much more."""

MAX_BYTES = 128 * 2**20
"""Largest image file."""

MAX_FRAMES = 10_000
"""Frames are counted up to this number."""

MAX_READS = 200_000
"""Most reads of up to 4 KiB for a header and to count frames: the first 10,000 frames or so of a GIF. Data of some
formats can refer to the same bytes again and again."""

MAX_SCANS = 100
"""Most scans of a JPEG, each of which covers all pixels again. Progressive images have 10 or so."""

ORIENTATION, WIDTH, HEIGHT = 0x112, 0x100, 0x101
"""Tags of EXIF and TIFF."""

_SCAN = b"\xff\xda"
"""What starts a scan of a JPEG; it is not among the data of a scan."""

_PNG_EXIF = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")
"""What starts a PNG's EXIF data. It is searched in the bytes: found by chance, it only costs time."""


class ImageProblem(ValueError):
    """The bytes of an image cannot be used.

    Args:
        code: `not_an_image`: the bytes are not in one of `FORMATS`; `image_too_large`: more pixels or bytes than
            allowed; `image_empty`: width or height is 0; `image_damaged`: the header or the pixels cannot be read.
        message: what is wrong, as the end of a sentence about the image.
    """

    def __init__(self, code: Literal["not_an_image", "image_too_large", "image_empty", "image_damaged"], message: str):
        super().__init__(code, message)
        self.code, self.message = code, message

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class ImageFacts:
    """What the header of an image file states.

    Args:
        format: lower-case name, such as `jpeg`.
        width, height: in pixels, after the image is rotated to its EXIF orientation.
        frames: 1 for still images, at most `MAX_FRAMES`. Frames after a damaged one are not counted.
        mode: Pillow's name of the pixel format, such as `RGB`, before the conversion to RGB.
    """

    format: str
    width: int
    height: int
    frames: int
    mode: str


def read_facts(data: bytes, max_pixels: int = MAX_PIXELS) -> ImageFacts:
    """Read the facts of an image file from its header.

    No pixel is decoded, except for a PNG that has its EXIF data after its pixels.

    Raises:
        ImageProblem: the bytes are not an image, its header is damaged, or it is empty or too large.
        TokenloomError: Pillow's settings in this process do not allow `max_pixels`.
    """
    with decoding():
        image = _opened(data, max_pixels, header_only=True)
        width, height = image.size
        if hasattr(image, "tag_v2"):
            # Versions of Pillow differ in whether the size of a TIFF is already rotated.
            tags = cast("Any", image).tag_v2
            width, height = tags[WIDTH], tags[HEIGHT]
        image_format, mode = image.format or "", image.mode  # before the other frames
        if _orientation(image, data) in (5, 6, 7, 8):  # these swap them
            width, height = height, width
        return ImageFacts(image_format.lower(), width, height, _frames(image), mode)


def check(data: bytes, facts: ImageFacts) -> None:
    """Check that `open_image` can decode an image, as cheaply as its format allows.

    All data of the first frame is read. A JPEG is decoded to an eighth of its size, which skips most of the arithmetic
    but not the data.

    Args:
        facts: from `read_facts`.

    Raises:
        ImageProblem: the pixels cannot be decoded.
        TokenloomError: Pillow is set to accept truncated images in this process, so nothing can be checked.
    """
    with decoding():
        from PIL import ImageFile

        if ImageFile.LOAD_TRUNCATED_IMAGES:
            raise TokenloomError("PIL.ImageFile.LOAD_TRUNCATED_IMAGES hides damaged images; set it to False")
        image = _opened(data, facts.width * facts.height)
        if facts.format in ("jpeg", "mpo"):
            image.draft(None, (1, 1))
        image.load()
        # A corner has the mode, palette and metadata of the image: the rest of the work can fail only for those.
        _finished(image.crop((0, 0, 1, 1)))


def open_image(data: bytes, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode the first frame of an image file, rotate it to its EXIF orientation and convert it to RGB.

    The pixels are those of `transformers.image_utils.load_image`. The conversion is Pillow's: alpha and transparent
    colors are dropped, not blended, so hidden colors show. Grey of 16 or 32 bits and floats are clipped to 0 to 255,
    not scaled. Color profiles are ignored.

    Raises:
        ImageProblem: the bytes are not an image, or it is damaged, empty or too large. Never, if `check` passed.
        TokenloomError: Pillow's settings in this process do not allow `max_pixels`.
    """
    with decoding():
        return _finished(_opened(data, max_pixels))


@contextmanager
def decoding() -> Iterator[None]:
    """Turn everything that Pillow raises inside into `ImageProblem`, and silence Pillow's warnings.

    Raises:
        ModuleNotFoundError: Pillow is not installed.
        ImageProblem: an exception of any type was raised inside. On hostile bytes, Pillow raises most of Python's.
    """
    try:
        from PIL import Image
    except ImportError:
        raise missing_package("PIL", "decoding images") from None
    filters = cast("list[Any]", warnings.filters)
    if not filters or filters[0] is not _QUIET:  # the first use, or someone has changed the filters since
        filters.insert(0, _QUIET)
    _IN_PILLOW.depth += 1
    try:
        yield
    except (ImageProblem, TokenloomError):
        raise
    except (MemoryError, Image.DecompressionBombError) as error:
        raise ImageProblem("image_too_large", f"needs too much memory: {first_line(error)}") from None
    except Exception as error:
        raise ImageProblem("image_damaged", f"cannot be decoded: {first_line(error)}") from None
    finally:
        _IN_PILLOW.depth -= 1


def _opened(data: bytes, max_pixels: int, header_only: bool = False) -> Image.Image:
    """Read the header of an image of at most so many pixels.

    `Image.open` is passed by for the functions that it calls: it depends on `Image.MAX_IMAGE_PIXELS`, hides why a
    plugin fails, and puts an address in its message.
    """
    from PIL import Image, JpegImagePlugin

    Image.init()  # registers the formats
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and 2 * limit < max_pixels:
        # Some plugins raise for more than twice the limit: what is too large would depend on the process.
        raise TokenloomError(
            f"PIL.Image.MAX_IMAGE_PIXELS is {limit}, but images can have up to {max_pixels} pixels; set it to that"
        )
    if len(data) > MAX_BYTES:
        raise ImageProblem("image_too_large", f"has {len(data):,} bytes, and the limit is {MAX_BYTES:,}")
    openers = cast("dict[str, Any]", Image.OPEN)
    # only these formats, whatever else is registered in this process
    opener = next((openers[name][0] for name in FORMATS if data and openers[name][1](data[:16]) is True), None)
    if opener is None:
        raise ImageProblem("not_an_image", "is not an image of a supported format" if data else "has no bytes")
    file = _CountedReads(data)
    try:
        image = opener(file, "")
    except SyntaxError:
        # An object whose constructor fails keeps what the header stated. The opener of JPEG is a function.
        image = object.__new__(opener if isinstance(opener, type) else JpegImagePlugin.JpegImageFile)
        with suppress(SyntaxError):
            image.__init__(_CountedReads(data), "")
        if image.mode and 0 in image.size:
            raise ImageProblem("image_empty", "has a width or height of 0") from None
        raise
    width, height = image.size
    if width * height > max_pixels:
        raise ImageProblem("image_too_large", f"has {width} x {height} pixels, and the limit is {max_pixels:,} pixels")
    # a small file with thousands of scans would take hours
    if image.format in ("JPEG", "MPO") and (scans := data.count(_SCAN)) > MAX_SCANS:
        raise ImageProblem("image_damaged", f"has {scans:,} scans, and the limit is {MAX_SCANS}")
    if not header_only:
        file.left = math.inf  # decoders read as much as there are pixels, some of them byte by byte
    return image


def _finished(image: Image.Image) -> Image.Image:
    from PIL import ImageOps

    ImageOps.exif_transpose(image, in_place=True)
    return image.convert("RGB")


def _orientation(image: Image.Image, data: bytes) -> Any:
    """Return the EXIF orientation, or what has its place in a wrong EXIF block."""
    from PIL import Image, PngImagePlugin

    if isinstance(image, PngImagePlugin.PngImageFile):
        pixels = max(0, data.find(b"IDAT"))
        if all(data.find(mark, pixels) < 0 for mark in _PNG_EXIF):
            # The method of a PNG decodes its pixels to get at what comes after them.
            return Image.Image.getexif(image).get(ORIENTATION)
    return image.getexif().get(ORIENTATION)


def _frames(image: Image.Image) -> int:
    count = 1
    with suppress(Exception):  # a later frame is damaged, or the end: neither matters for the first frame
        if not hasattr(image, "tag_v2"):
            return max(1, min(getattr(image, "n_frames", 1), MAX_FRAMES))
        while count < MAX_FRAMES:  # `n_frames` of a TIFF has no limit, and its time grows by the square
            image.seek(count)
            count += 1
    return min(image.tell() + 1, MAX_FRAMES) if image.format == "GIF" else count


class _CountedReads(io.BytesIO):
    def __init__(self, data: bytes):
        super().__init__(data)
        self.left: float = MAX_READS

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        self.left -= 1 + len(content) // 4096
        if self.left < 0:
            raise ImageProblem("image_damaged", "has a header that refers to too much data")
        return content


class _InPillow(threading.local):
    """The module pattern of a warning filter, which matches Pillow's modules in threads that are in `decoding`.

    `warnings.catch_warnings` would change the filters of all threads. With this pattern, one filter stays in the list
    and does nothing elsewhere, also where another filter turns warnings into errors.
    """

    depth = 0

    def match(self, module: str) -> bool:
        """Return whether a warning of this module is one to silence; `warnings` calls it."""
        return self.depth > 0 and module.startswith("PIL.")


_IN_PILLOW = _InPillow()
_QUIET = ("ignore", None, Warning, _IN_PILLOW, 0)
