"""Texts laid out as trees by plain recursion, and what models make of the same texts one by one: the oracle of batches
of `length.packing: tree`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import cross_entropy

Text = tuple[list[int], list[float]]
"""Tokens, and the weight of each; 0: not trained. The first token is never trained."""

Logits = dict[tuple[int, ...], torch.Tensor]
"""Logits by all tokens of the text until and with the one that they are computed at."""


@dataclass
class Row:
    """A row of trees: what a batch has of each token, and the places that it sees."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    seen: list[list[int]] = field(default_factory=list)

    def place(self, token: int, position: int, weight: float, seen: list[int]) -> list[int]:
        """Add a token, and return the places that the next token of the text sees."""
        seen = [*seen, len(self.ids)]
        self.ids.append(token)
        self.positions.append(position)
        self.labels.append(token if weight else -100)
        self.weights.append(weight)
        self.seen.append(seen)
        return seen

    def text(self, place: int) -> tuple[int, ...]:
        return tuple(self.ids[other] for other in self.seen[place])

    def ends(self) -> list[int]:
        """Return `attention_ends`, and check that it tells what each token sees."""
        count = len(self.ids)
        ends = [next((q for q in range(k, count) if k not in self.seen[q]), count) for k in range(count)]
        for query in range(count):
            assert self.seen[query] == [key for key in range(query + 1) if query < ends[key]]
        return ends


def _grow(row: Row, texts: list[Text], depth: int, seen: list[int]) -> None:
    while all(len(ids) > depth for ids, _ in texts) and len({ids[depth] for ids, _ in texts}) == 1:
        seen = row.place(texts[0][0][depth], depth, sum(weights[depth] for _, weights in texts), seen)
        depth += 1
    groups: dict[int, list[Text]] = {}
    for text in texts:
        if len(text[0]) > depth:
            groups.setdefault(text[0][depth], []).append(text)
    for group in groups.values():
        shared = group[0][0][depth - 1]
        _grow(row, group, depth, row.place(shared, depth - 1, 0.0, seen[:-1]))


def laid_out(trees: Sequence[Sequence[Text]]) -> Row:
    """Return a row of trees, one after the other. The texts of a tree share their first token."""
    row = Row()
    for texts in trees:
        _grow(row, list(texts), 0, [])
    return row


def cut(texts: Sequence[Text]) -> list[list[Text]]:
    """Return the texts of a tree as two trees; what both have is trained in the first alone."""
    first, second = list(texts[: len(texts) // 2]), list(texts[len(texts) // 2 :])
    known = [ids for ids, _ in first]
    divided: list[Text] = []
    for ids, weights in second:
        shared = max(len(_common(ids, other)) for other in known)
        moved = [weights[place] if place < shared else 0.0 for place in range(len(ids))]
        owner = next(place for place, other in enumerate(known) if len(_common(ids, other)) == shared)
        own, old = first[owner]
        first[owner] = (own, [a + (moved[place] if place < shared else 0.0) for place, a in enumerate(old)])
        divided.append((ids, [0.0 if place < shared else weight for place, weight in enumerate(weights)]))
    return [first, divided]


def _common(one: list[int], other: list[int]) -> list[int]:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return one[:count]


def batch_of(rows: Sequence[Row], side: str = "right", more: int = 3) -> dict[str, torch.Tensor]:
    """Return the batch of some rows, padded on one side to the longest and some places more."""
    width = max(len(row.ids) for row in rows) + more
    lists: dict[str, list[list[Any]]] = {}
    for row in rows:
        blank = width - len(row.ids)
        before = blank if side == "left" else 0
        padding = list(range(before)) if before else list(range(len(row.ids), width))
        columns: dict[str, tuple[list[Any], list[Any]]] = {
            "input_ids": (row.ids, [0] * blank),
            "attention_mask": ([1] * len(row.ids), [0] * blank),
            "labels": (row.labels, [-100] * blank),
            "position_ids": (row.positions, [0] * blank),
            "loss_weights": (row.weights, [0.0] * blank),
            "attention_ends": ([before + end for end in row.ends()], [place + 1 for place in padding]),
        }
        for name, (own, filled) in columns.items():
            lists.setdefault(name, []).append(filled + own if before else own + filled)
    return {name: torch.tensor(values) for name, values in lists.items()}


def drawn_texts(draw: random.Random, vocabulary: int, texts: int = 5, longest: int = 14) -> list[Text]:
    """Return texts of one tree: each continues an earlier one from some place. Weights are 0, 0.25, 1 or 3."""
    tree = [[draw.randrange(1, vocabulary) for _ in range(draw.randrange(4, longest))]]
    while len(tree) < texts:
        start = draw.choice(tree)
        kept = start[: draw.randrange(1, len(start) + 1)]
        tree.append([*kept, *(draw.randrange(1, vocabulary) for _ in range(draw.randrange(1, longest - 4)))])
    return [(ids, [0.0, *(draw.choice([0.0, 0.25, 1.0, 3.0]) for _ in ids[1:])]) for ids in tree]


def separate(model: Any, texts: Sequence[Text]) -> tuple[torch.Tensor, Logits]:
    """Return the sum of the weighted losses of texts that the model sees one by one, and their logits."""
    total: Any = 0.0
    found: Logits = {}
    for ids, weights in texts:
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        found |= {tuple(ids[: place + 1]): logits[place].detach() for place in range(len(ids))}
        losses = cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")
        total = total + (losses * torch.tensor(weights[1:], dtype=losses.dtype)).sum()
    return total, found


def of_tree(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the sum of the weighted losses of a batch of trees, token by token."""
    total: Any = 0.0
    for row, places in enumerate((batch["labels"] != -100).tolist()):
        for place in (place for place, trained in enumerate(places) if trained):
            loss = cross_entropy(logits[row, place - 1], batch["labels"][row, place])
            total = total + batch["loss_weights"][row, place] * loss
    return total


def difference(logits: torch.Tensor, rows: Sequence[Row], batch: dict[str, torch.Tensor], known: Logits) -> float:
    """Return the largest difference between the logits of a batch and those of its texts, at all tokens."""
    worst = 0.0
    for row, own, mask in zip(rows, logits, batch["attention_mask"].bool(), strict=True):
        for place, found in enumerate(own[mask]):
            worst = max(worst, float((found - known[row.text(place)]).abs().max()))
    return worst
