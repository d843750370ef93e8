"""The merges behind a ranked vocabulary: tokenizer.json lists them, rank files and SentencePiece models do not."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TypeVar

Piece = TypeVar("Piece", str, bytes)

LONGEST = 1000
"""Characters or bytes of the longest piece; those of real vocabularies have some hundred."""
_NONE = sys.maxsize


def recover_merges(ranks: Mapping[Piece, int]) -> list[tuple[Piece, Piece]]:
    """The pair that each piece is merged from, lowest rank first.

    Encoding by ranks always merges the leftmost adjacent pair whose concatenation ranks lowest. As long as no merge
    crosses a piece's borders, the merges inside do not depend on what stands around it: so the last pair inside is
    always the same one, and one merge a piece gives the same ids as the ranks do
    (https://github.com/openai/tiktoken, `byte_pair_merge`; Sennrich et al., ACL 2016). A piece that no merge makes
    has none.

    Args:
        ranks: piece to rank; all different.
    """
    return [pair for piece in sorted(ranks, key=ranks.__getitem__) if (pair := _last_pair(piece, ranks)) is not None]


def _last_pair(piece: Piece, ranks: Mapping[Piece, int]) -> tuple[Piece, Piece] | None:
    parts = [piece[at : at + 1] for at in range(len(piece))]
    found = [ranks.get(piece[at : at + 2], _NONE) for at in range(len(piece) - 1)]
    while len(parts) > 2:
        if (lowest := min(found)) == _NONE:
            return None
        at = found.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        del found[at]
        for beside in (at - 1, at):
            if 0 <= beside < len(found):
                found[beside] = ranks.get(parts[beside] + parts[beside + 1], _NONE)
    return (parts[0], parts[1]) if len(parts) == 2 else None
