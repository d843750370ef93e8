"""BPE merges recovered from ranks: tokenizer.json lists merges, rank files and SentencePiece models do not."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TypeVar

Piece = TypeVar("Piece", str, bytes)

LONGEST = 1000
"""Maximum length of a piece in characters or bytes. The longest of real vocabularies have a few hundred."""
_NONE = sys.maxsize


def recover_merges(ranks: Mapping[Piece, int]) -> list[tuple[Piece, Piece]]:
    """Return the pair that each piece is merged from, lowest rank first.

    Encoding by ranks always merges the leftmost adjacent pair whose concatenation has the lowest rank. As long as no
    merge crosses a piece's borders, the merges inside the piece do not depend on the text around it. So the last pair
    inside is always the same, and one merge per piece gives the same ids as the ranks
    (https://github.com/openai/tiktoken, `byte_pair_merge`; Sennrich et al., ACL 2016). Pieces that no merge produces
    are skipped.

    Args:
        ranks: rank of each piece, all different.
    """
    return [pair for piece in sorted(ranks, key=ranks.__getitem__) if (pair := _last_pair(piece, ranks)) is not None]


def _last_pair(piece: Piece, ranks: Mapping[Piece, int]) -> tuple[Piece, Piece] | None:
    parts = [piece[start : start + 1] for start in range(len(piece))]
    pair_ranks = [ranks.get(piece[start : start + 2], _NONE) for start in range(len(piece) - 1)]
    while len(parts) > 2:
        if (lowest := min(pair_ranks)) == _NONE:
            return None
        merged = pair_ranks.index(lowest)
        parts[merged : merged + 2] = [parts[merged] + parts[merged + 1]]
        del pair_ranks[merged]
        for left in (merged - 1, merged):
            if 0 <= left < len(pair_ranks):
                pair_ranks[left] = ranks.get(parts[left] + parts[left + 1], _NONE)
    return (parts[0], parts[1]) if len(parts) == 2 else None
