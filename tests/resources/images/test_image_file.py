"""Image files: facts and pixels agree with Pillow and transformers, and hostile bytes give only `ImageProblem`."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import sys
import threading
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile
from transformers.image_utils import load_image

from support.processes import run
from tokenloom.errors import TokenloomError
from tokenloom.resources.images import image_file
from tokenloom.resources.images.image_file import ImageFacts, ImageProblem, check, decoding, open_image, read_facts

PNG = b"\x89PNG\r\n\x1a\n"
CODES = {"not_an_image", "image_too_large", "image_empty", "image_damaged"}


def picture(mode: str = "RGB", size: tuple[int, int] = (13, 7), seed: int = 0) -> Image.Image:
    """Return random pixels, of a range that 8 bits do not hold where the mode has more."""
    generator, shape = np.random.default_rng(seed), (size[1], size[0])
    if mode == "I;16":
        return Image.fromarray(generator.integers(0, 2**16, shape).astype(np.uint16))
    if mode == "I":
        return Image.fromarray(generator.integers(-1000, 100_000, shape).astype(np.int32))
    if mode == "F":
        return Image.fromarray(generator.uniform(-100, 400, shape).astype(np.float32))
    if mode == "P":
        return picture("RGB", size, seed).quantize(40)
    if mode in ("1", "CMYK", "YCbCr", "L", "RGB"):
        return Image.fromarray(generator.integers(0, 256, (*shape, 3), dtype=np.uint8)).convert(mode)
    bands = [Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8)) for _ in mode]
    return Image.merge(mode, bands)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def loaded(data: bytes) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_image(Image.open(io.BytesIO(data)))


def assert_same(image: Image.Image, expected: Image.Image) -> None:
    assert (image.mode, image.size) == (expected.mode, expected.size) == ("RGB", expected.size)
    assert image.tobytes() == expected.tobytes()


def examined(data: bytes) -> ImageFacts | ImageProblem:
    """Read, check and decode an image. For any bytes, the results agree with each other and with transformers."""
    try:
        facts = read_facts(data)
        check(data, facts)
    except ImageProblem as problem:
        assert problem.code in CODES and str(problem) and "0x" not in str(problem)
        try:
            open_image(data)
        except ImageProblem:
            pass
        return problem
    image = open_image(data)
    assert_same(image, loaded(data))
    assert image.size == (facts.width, facts.height)
    return facts


MODES = {
    "JPEG": ("L", "RGB", "CMYK", "YCbCr"),
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "WEBP": ("L", "RGB", "RGBA"),
    "GIF": ("1", "L", "P", "RGB"),
    "BMP": ("1", "L", "P", "RGB", "RGBA"),
    "TIFF": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "LAB", "I;16", "I", "F"),
    "PPM": ("1", "L", "RGB", "I;16", "F"),
}


@pytest.mark.parametrize(("kind", "mode"), [(kind, mode) for kind, modes in MODES.items() for mode in modes])
def test_facts_and_pixels_of_every_format_and_mode(kind: str, mode: str) -> None:
    data = encoded(picture(mode), kind)
    stored = Image.open(io.BytesIO(data))
    facts = read_facts(data)
    assert facts == ImageFacts(kind.lower(), 13, 7, 1, stored.mode)
    check(data, facts)
    assert_same(open_image(data), loaded(data))


@pytest.mark.parametrize("transparency", [0, b"\0\x80\xff"])
@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_transparent_palettes(kind: str, transparency: int | bytes) -> None:
    if kind == "GIF" and isinstance(transparency, bytes):
        transparency = 3
    assert isinstance(examined(encoded(picture("P"), kind, transparency=transparency)), ImageFacts)


@pytest.mark.parametrize("options", [{"compression": "tiff_lzw"}, {"compression": "jpeg"}, {"tile": (16, 16)}])
def test_tiff_compressions(options: dict[str, Any]) -> None:
    assert isinstance(examined(encoded(picture(size=(40, 33)), "TIFF", **options)), ImageFacts)


def test_progressive_jpeg() -> None:
    content = encoded(picture(size=(65, 33)), "JPEG", progressive=True)
    assert isinstance(examined(content), ImageFacts)
    last = content.rindex(b"\xff\xda")
    scan = content[last:-2]
    assert isinstance(examined(content[:-2] + 80 * scan + content[-2:]), ImageFacts)
    assert "110 scans, and the limit is 100" in str(examined(content[:-2] + 100 * scan + content[-2:]))


def exif(orientation: Any) -> Image.Exif:
    made = Image.Exif()
    made[image_file.ORIENTATION] = orientation
    return made


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientations(kind: str, orientation: int) -> None:
    data = encoded(picture(), kind, exif=exif(orientation))
    facts = examined(data)
    assert isinstance(facts, ImageFacts)
    assert (facts.width, facts.height) == ((7, 13) if orientation in (5, 6, 7, 8) else (13, 7))


def chunk(kind: bytes, content: bytes, crc: int | None = None) -> bytes:
    crc = zlib.crc32(kind + content) if crc is None else crc
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)


def with_chunks(before: bytes = b"", after: bytes = b"", mode: str = "RGB") -> bytes:
    """Return a PNG with chunks after its header, and after its pixels."""
    data = encoded(picture(mode), "PNG")
    return data[:33] + before + data[33:-12] + after + data[-12:]


XMP = b'XML:com.adobe.xmp\0\0\0\0\0<x tiff:Orientation="6"/>'


@pytest.mark.parametrize("late", [chunk(b"eXIf", exif(6).tobytes()[6:]), chunk(b"iTXt", XMP)])
def test_orientation_of_a_png_that_follows_its_pixels(late: bytes) -> None:
    for data in (with_chunks(before=late), with_chunks(after=late)):
        facts = examined(data)
        assert isinstance(facts, ImageFacts) and (facts.width, facts.height) == (7, 13)


def test_no_pixel_is_decoded_for_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [encoded(picture(), kind) for kind in MODES]
    files.append(encoded(picture(), "GIF", save_all=True, append_images=[picture(seed=1)]))
    with monkeypatch.context() as patch:
        patch.setattr(Image, "_getdecoder", lambda *_: pytest.fail("decodes"))
        for data in files:
            read_facts(data)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF", "MPO"])
def test_frames(kind: str) -> None:
    data = encoded(picture(), kind, save_all=True, append_images=[picture(seed=seed) for seed in (1, 2)])
    facts = examined(data)
    assert isinstance(facts, ImageFacts)
    assert (facts.frames, facts.format) == (3, kind.lower())


@pytest.mark.parametrize("kind", ["GIF", "TIFF"])
def test_frames_are_counted_up_to_a_limit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(picture(), kind, save_all=True, append_images=[picture(seed=seed) for seed in range(1, 9)])
    monkeypatch.setattr(image_file, "MAX_FRAMES", 4)
    assert read_facts(data).frames == 4
    monkeypatch.setattr(image_file, "MAX_READS", 160)
    assert 1 <= read_facts(data).frames < 9


def test_a_damaged_later_frame_leaves_the_first_usable() -> None:
    data = encoded(picture(size=(40, 40)), "GIF", save_all=True, append_images=[picture(size=(40, 40), seed=1)])
    facts = examined(data[:-200])
    assert isinstance(facts, ImageFacts) and facts.frames >= 1


def tiff(tags: dict[int, int], following: int = 0) -> bytes:
    """Return a TIFF of one directory at byte 8, followed by the one at byte `following`."""
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", following) + bytes(64)


GREY = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: 100, 277: 1, 278: 8, 279: 64}


def header(width: int, height: int) -> bytes:
    return PNG + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


def jpeg_of(width: int, height: int) -> bytes:
    data = encoded(picture(), "JPEG")
    start = data.index(b"\xff\xc0") + 5
    return data[:start] + struct.pack(">HH", height, width) + data[start + 4 :]


def webp_canvas(width: int, height: int) -> bytes:
    size = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    frame = encoded(picture(), "WEBP")[12:]
    body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + size + frame
    return b"RIFF" + struct.pack("<I", len(body)) + body


def gif_of(width: int, height: int, frame: tuple[int, int], disposal: int = 2) -> bytes:
    control = b"!\xf9\x04" + bytes([disposal << 2 | 1]) + bytes(4)
    return (
        b"GIF89a"
        + struct.pack("<HHBBB", width, height, 0, 0, 0)
        + control
        + (b"," + struct.pack("<HHHHB", 0, 0, *frame, 0) + b"\x08\x02\0\x01\0;")
    )


def jpeg_segment(kind: int, content: bytes) -> bytes:
    return b"\xff\xd8\xff" + bytes([kind]) + struct.pack(">H", len(content) + 2) + content


BOMB = zlib.compress(bytes(50_000_000))
ZIP = io.BytesIO()
with zipfile.ZipFile(ZIP, "w") as archive:
    archive.writestr("image.png", encoded(picture(), "PNG"))

JPEG_BODY = encoded(picture(size=(40, 40)), "JPEG")[2:]
BOMBS = {
    "jpeg of 65,535 x 65,535": jpeg_of(65_535, 65_535),
    "png of 100,000 x 100,000": header(100_000, 100_000) + chunk(b"IDAT", b""),
    "png of 2^31 - 1": header(2**31 - 1, 2**31 - 1) + chunk(b"IDAT", b""),
    "png of many pixels": header(80_000, 2000) + chunk(b"IDAT", zlib.compress(bytes(2**20))) + chunk(b"IEND", b""),
    "bmp": encoded(picture(), "BMP")[:18] + struct.pack("<ii", 70_000, 70_000) + encoded(picture(), "BMP")[26:],
    "gif": gif_of(65_535, 65_535, (65_535, 65_535)),
    "gif frame larger than its screen": gif_of(1, 1, (65_535, 65_535)),
    "webp canvas": webp_canvas(16_383, 16_383),
    "huge webp canvas": webp_canvas(2**24, 255),
    "tiff": tiff({**GREY, 256: 2**31 - 1, 257: 2**31 - 1}),
    "ppm": b"P6 99999 99999 255\n" + bytes(99),
    "plain ppm": b"P3 99999 99999 255\n" + b"1 " * 99,
    "png with an iCCP bomb": with_chunks(chunk(b"iCCP", b"icc\0\0" + BOMB)),
    "png with a zTXt bomb": with_chunks(chunk(b"zTXt", b"text\0\0" + BOMB)),
    "png with an iTXt bomb after its pixels": with_chunks(after=chunk(b"iTXt", b"text\0\1\0\0\0" + BOMB)),
}

HOSTILE: dict[str, bytes] = {
    **BOMBS,
    "empty": b"",
    "one byte": b"\xff",
    "html": b"<!DOCTYPE html><html><body>404</body></html>",
    "text": "A caption, not an image.".encode("utf-16"),
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
    "pdf": b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj",
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage",
    "wmf": b"\xd7\xcd\xc6\x9a" + bytes(60),
    "zip": ZIP.getvalue(),
    "gzip": gzip.compress(encoded(picture(), "PNG")),
    "ico": encoded(picture(size=(16, 16)), "ICO"),
    "tga": encoded(picture(), "TGA"),
    "base64": b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
    "bmp by its first letters only": b"BM is how this text starts, which is long enough to be a header of a bitmap",
    "ppm by its first letters only": b"P6 is how this text starts",
    "zero png": header(0, 0) + chunk(b"IDAT", b""),
    "png without width": header(0, 9) + chunk(b"IDAT", b""),
    "zero gif": gif_of(0, 0, (0, 0)),
    "zero bmp": encoded(picture(), "BMP")[:18] + bytes(8) + encoded(picture(), "BMP")[26:],
    "zero ppm": b"P6 0 0 255\n",
    "zero tiff": tiff({**GREY, 256: 0}),
    "zero jpeg": jpeg_of(0, 0),
    "jpeg without height": jpeg_of(13, 0),
    "negative bmp": encoded(picture(), "BMP")[:22] + struct.pack("<i", -7) + encoded(picture(), "BMP")[26:],
    "jpeg header only": b"\xff\xd8\xff",
    "jpeg of nothing": b"\xff\xd8\xff\xd9",
    "jpeg with an empty EXIF block": jpeg_segment(0xE1, b"Exif\0\0") + JPEG_BODY,
    "jpeg with a wrong EXIF block": jpeg_segment(0xE1, b"Exif\0\0II*\0\xff\xff\xff\xff" + bytes(9)) + JPEG_BODY,
    "jpeg with an EXIF block of noise": jpeg_segment(0xE1, b"Exif\0\0" + bytes(range(1, 200))) + JPEG_BODY,
    "jpeg with huge EXIF": jpeg_segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + bytes(65_000)) + JPEG_BODY,
    "jpeg with orientation as text": jpeg_segment(
        0xE1, b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\1\x02\0\x02\0\0\0" + b"6\0" + bytes(9)
    )
    + JPEG_BODY,
    "jpeg with a wrong MPO block": jpeg_segment(0xE2, b"MPF\0II*\0\x08\0\0\0\xff\xff" + bytes(99)) + JPEG_BODY,
    "jpeg with an unknown quantization table": jpeg_segment(0xDB, b"\x0f" + bytes(9)) + JPEG_BODY,
    "png of wrong crc": PNG + chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 9, 8, 2, 0, 0, 0), crc=1),
    "png with text of wrong crc": with_chunks(chunk(b"tEXt", b"a\0b", crc=1)),
    "png with late text of wrong crc": with_chunks(after=chunk(b"tEXt", b"a\0b", crc=1)),
    "png with pixels of wrong crc": header(2, 1) + chunk(b"IDAT", zlib.compress(bytes(7)), crc=1) + chunk(b"IEND", b""),
    "png with a wrong zlib stream": header(2, 1) + chunk(b"IDAT", b"not zlib") + chunk(b"IEND", b""),
    "png with too few pixels": header(9, 9) + chunk(b"IDAT", zlib.compress(bytes(7))) + chunk(b"IEND", b""),
    "png without pixels": header(9, 9) + chunk(b"IEND", b""),
    "png without a header": PNG + chunk(b"IDAT", b"") + chunk(b"IEND", b""),
    "png of an unknown mode": PNG + chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 9, 7, 5, 0, 0, 0)) + chunk(b"IDAT", b""),
    "png with huge text": with_chunks(chunk(b"tEXt", b"text\0" + b"x" * 2_000_000)),
    "png with late EXIF of noise": with_chunks(after=chunk(b"eXIf", bytes(range(99)))),
    "png with an invalid animation": with_chunks(chunk(b"acTL", bytes(8))),
    "png of 2^31 - 1 frames": with_chunks(chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0))),
    "palette png without a palette": PNG
    + chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 8, 3, 0, 0, 0))
    + chunk(b"IDAT", zlib.compress(b"\0\7\xff"))
    + chunk(b"IEND", b""),
    "gif without a frame": b"GIF89a" + struct.pack("<HHBBB", 9, 9, 0, 0, 0) + b";",
    "gif of an endless comment": b"GIF89a" + struct.pack("<HHBBB", 9, 9, 0, 0, 0) + b"!\xfe" + b"\x01a" * 300_000,
    "gif frame outside its screen": gif_of(3, 3, (9, 9)),
    "webp of nothing": b"RIFF\x10\0\0\0WEBPVP8 " + bytes(9),
    "webp of wrong lengths": b"RIFF\xff\xff\xff\xffWEBPVP8L\xff\xff\xff\xff/" + bytes(40),
    "webp with wrong EXIF": encoded(picture(), "WEBP", exif=b"Exif\0\0" + bytes(range(1, 99))),
    "tiff of a loop": tiff(GREY, following=8),
    "tiff whose directory is its header": tiff(GREY, following=0)[:4] + bytes(4) + tiff(GREY)[8:],
    "tiff with a wrong next directory": tiff(GREY, following=2**32 - 1),
    "tiff of overlapping directories": tiff(GREY, following=20),
    "tiff of wrong compression": tiff({**GREY, 259: 6}),
    "tiff with many samples": tiff({**GREY, 277: 2**16}),
    "tiff with a strip outside the file": tiff({**GREY, 273: 2**31}),
    "tiff without dimensions": tiff({258: 8}),
    "tiff of rows per strip 0": tiff({**GREY, 278: 0}),
    "big tiff": b"II+\0\x08\0\0\0" + bytes(40),
    "pfm of nan": b"Pf\n1 1\nnan\n" + bytes(4),
    "ppm of a huge number": b"P5 " + b"9" * 99 + b" 1 255\n",
    "bmp of wrong depth": encoded(picture(), "BMP")[:28] + b"\x07" + encoded(picture(), "BMP")[29:],
    "bmp of run lengths": encoded(picture("P"), "BMP")[:30] + b"\x01" + encoded(picture("P"), "BMP")[31:],
    **{f"noise {n}": np.random.default_rng(n).bytes(400) for n in range(3)},
    **{
        f"{kind} cut at {share:.0%}": encoded(picture(size=(40, 40)), kind)[: int(len(data) * share)]
        for kind in MODES
        for data in [encoded(picture(size=(40, 40)), kind)]
        for share in (0.01, 0.1, 0.5, 0.9, 0.99)
    },
    **{
        f"{start[:4]!r} and noise": start + np.random.default_rng(1).bytes(600)
        for start in (b"\xff\xd8\xff", PNG, b"GIF89a", b"BM", b"II*\0", b"MM\0*", b"RIFF\0\0\0\0WEBPVP8X", b"P6 ")
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_an_image_or_a_problem(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        outcomes = []
        for function in (read_facts, open_image):
            try:
                outcomes.append(function(HOSTILE[name]))
            except ImageProblem as problem:
                outcomes.append(problem)
        assert [entry for entry in warnings.filters if entry is not image_file._QUIET] == before
    printed = capfd.readouterr()
    assert not printed.out and "Warning" not in printed.err  # libtiff prints lines of its own, which nothing silences
    examined(HOSTILE[name])


@pytest.mark.parametrize(
    ("code", "names"),
    {
        "not_an_image": "empty|one byte|html|text|svg|pdf|eps|wmf|zip|gzip|ico|tga|base64|noise 0",
        "image_empty": "zero png|png without width|zero gif|zero ppm|zero bmp|zero tiff|zero jpeg|jpeg without height",
        "image_too_large": "jpeg of 65,535 x 65,535|png of 100,000 x 100,000|png of many pixels|bmp|gif|tiff|ppm|"
        "gif frame larger than its screen",
        "image_damaged": "png of wrong crc|png without a header|png of an unknown mode|JPEG cut at 10%|"
        "png with an iCCP bomb|jpeg header only|webp of nothing|PNG cut at 50%|"
        "JPEG cut at 50%|PPM cut at 90%|TIFF cut at 50%|WEBP cut at 50%|GIF cut at 90%|BMP cut at 90%",
    }.items(),
)
def test_codes(code: str, names: str) -> None:
    found = {name: examined(HOSTILE[name]) for name in names.split("|")}
    assert {name: getattr(problem, "code", problem) for name, problem in found.items()} == dict.fromkeys(found, code)


def test_memory_of_bombs_is_bounded(tmp_path: Path) -> None:
    """In a process of its own, since a bomb's memory is not Python's, and a peak cannot be reset."""
    program = """
import pickle, resource, sys
from tokenloom.resources.images.image_file import ImageProblem, check, open_image, read_facts
with open(sys.argv[1], "rb") as file:
    bombs = pickle.load(file)
open_image(bombs.pop("image"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for data in bombs.values():
    try:
        check(data, read_facts(data))
    except ImageProblem:
        pass
    try:
        open_image(data)
    except ImageProblem:
        pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    (tmp_path / "bombs").write_bytes(pickle.dumps({"image": encoded(picture(), "PNG"), **BOMBS}))
    assert int(run([sys.executable, "-c", program, tmp_path / "bombs"], check=True).stdout) < 100


def small_images() -> Iterator[bytes]:
    for kind in MODES:
        yield encoded(picture(size=(24, 17)), kind)
    yield encoded(picture(size=(24, 17)), "JPEG", progressive=True, exif=exif(6))
    yield encoded(picture("P"), "PNG", transparency=b"\0\x80", exif=exif(5))
    yield encoded(picture(), "TIFF", compression="tiff_lzw", exif=exif(8))
    yield encoded(picture(), "GIF", save_all=True, append_images=[picture(seed=1)])
    yield encoded(picture("LAB"), "TIFF")


@given(
    st.sampled_from(list(small_images())),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(1, 255)), max_size=4),
    st.integers(0, 2**16) | st.none(),
)
def test_flipped_bytes(data: bytes, flips: list[tuple[int, int]], end: int | None) -> None:
    changed = bytearray(data)
    for place, flip in flips:
        # half of the flips are in the first 64 bytes, where most of a header is
        changed[place // 2 % (64 if place % 2 else len(data))] ^= flip
    examined(bytes(changed[: None if end is None else end % (2 * len(data))]))


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(picture(), "PNG")
    assert read_facts(data, 91).width == open_image(data, 91).width == 13
    for function in (read_facts, open_image):
        with pytest.raises(ImageProblem, match="13 x 7 pixels, and the limit is 90") as raised:
            function(data, 90)
        assert raised.value.code == "image_too_large"
    monkeypatch.setattr(image_file, "MAX_BYTES", len(data) - 1)
    with pytest.raises(ImageProblem, match="bytes, and the limit") as raised:
        read_facts(data)
    assert raised.value.code == "image_too_large"
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.parametrize("limit", [40, 45, 46, None])
def test_pillows_limit_changes_nothing_or_is_refused(limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    for kind in MODES:
        data = encoded(picture(), kind)
        for function in (read_facts, open_image):
            if limit is not None and limit < 46:
                with pytest.raises(TokenloomError, match="MAX_IMAGE_PIXELS"):
                    function(data, 91)
            else:
                function(data, 91)
    monkeypatch.undo()


def test_pillows_tolerance_of_truncated_images_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(picture(), "JPEG")
    facts = read_facts(data)
    expected = open_image(data)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(TokenloomError, match="LOAD_TRUNCATED_IMAGES"):
        check(data, facts)
    assert_same(open_image(data), expected)


def test_only_warnings_inside_are_silenced() -> None:
    warn: Callable[[], None] = eval("lambda: warnings.warn('from Pillow')", {"warnings": warnings, "__name__": "PIL.X"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with decoding():
            warn()
            problems: list[Warning] = []

            def elsewhere() -> None:
                try:
                    warn()
                except UserWarning as warning:
                    problems.append(warning)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
        assert len(problems) == 1
        with pytest.raises(UserWarning):
            warn()


def test_state_of_the_process_is_left_alone() -> None:
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    for data in HOSTILE.values():
        try:
            read_facts(data)
        except ImageProblem:
            pass
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


def test_pillow_that_is_not_installed() -> None:
    program = """
import sys
sys.modules["PIL"] = None
from tokenloom.resources.images.image_file import read_facts
try:
    read_facts(b"")
except ModuleNotFoundError as error:
    print(error)
"""
    printed = run([sys.executable, "-c", program], check=True).stdout
    assert "pip install 'tokenloom[vision]'" in printed
