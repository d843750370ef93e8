"""Small PNG pictures, drawn as arrays of palette numbers."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

PALETTE = bytes.fromhex("ffffff 6b7280 9ca3af 10b981")
TRANSPARENT, DARK, GREY, GREEN = range(4)


def png(picture: npt.NDArray[np.uint8]) -> bytes:
    """Return a picture as a PNG; uint8 [height, width], numbers of `PALETTE`'s colours, 0 is transparent."""
    lines = np.pad(picture, ((0, 0), (1, 0))).tobytes()  # each line starts with its PNG filter type, 0
    header = struct.pack(">IIBBBBB", picture.shape[1], len(picture), 8, 3, 0, 0, 0)
    blocks = ((b"IHDR", header), (b"PLTE", PALETTE), (b"tRNS", b"\0"), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in blocks
    )
