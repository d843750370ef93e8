"""Trees: the texts of a row, or of rows with the same prompt, with each token that they share stored once.

Texts that begin with the same tokens form a trie. Its tokens are stored in depth-first order, so that a token's context
is what comes before it in the tree, without other branches. A *node* is a run of tokens that the same texts share.

A branch begins with a copy of the last token that it shares, which is not trained. So the token before any trained
token is the one before it in its text, and labels are shifted as in other sequences. A token that several texts train
has the sum of their weights: loss and gradients are those of separate texts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.spans import SPAN_ROLES, FlatSpans
from tokenloom.assets.sequences.answers import Documents
from tokenloom.resources.tables.ragged import (
    Ints,
    flat_numbers,
    list_array,
    list_parts,
    offsets_of,
    ranges,
    row_of,
    sum_rows,
)
from tokenloom.resources.tables.sequence_schema import DOCUMENT_LENGTHS, INPUT_IDS, POSITIONS, ROWS

_ANSWERS = [SPAN_ROLES.index(role) for role in ("answer", "assistant")]


@dataclass(frozen=True)
class Trees:
    """The trees of a chunk.

    Args:
        nodes: the nodes of all trees, in depth-first order; the row of a node is that of its first text.
        positions: int64 [nodes], the position of a node's first token in its texts.
        reach: int64 [nodes], the number of tokens of the node and all nodes below it.
        counts: int64 [trees], the number of nodes of each tree.
        lengths: int64 [trees], the number of tokens of each tree.
    """

    nodes: Documents
    positions: Ints
    reach: Ints
    counts: Ints
    lengths: Ints


def prompts_of(rows: np.ndarray, whole: Documents, spans: FlatSpans) -> Ints:
    """Return int64 [documents]: equal numbers for the texts of a row, and of rows with the same tokens before the first
    answer; ascending by first row.

    Args:
        rows: int32 [documents], the raw row of each document.
        whole: the documents of the chunk before any of them is cut, with these spans.
    """
    first = np.unique(whole.rows, return_index=True)[1]  # a row's shortest text
    answers = np.flatnonzero(np.isin(spans.speaker, _ANSWERS))
    texts, spoken = np.unique(row_of(spans.counts)[answers], return_index=True)
    sizes = np.zeros(len(whole.lengths), np.int64)
    sizes[texts] = spans.start[answers[spoken]]
    sizes, starts = sizes[first], offsets_of(whole.lengths)[first]
    prompts = _bytes_of(whole.ids[ranges(starts, sizes)], sizes)
    groups = pc.dictionary_encode(prompts).indices.to_numpy().astype(np.int64)
    # rows without a prompt share nothing, so each has a group of its own
    groups = np.where(sizes > 0, groups, len(first) + np.arange(len(first)))
    _, begins, group = np.unique(groups, return_index=True, return_inverse=True)
    return begins[group][np.searchsorted(whole.rows[first], rows)]


def grow(texts: Documents, groups: Ints, max_length: int) -> Trees:
    """Join the texts of each group to trees of at most `max_length` tokens.

    Sorted texts share the most with the text before them, so that one comparison of neighbours finds the whole trie. A
    tree that is too long is cut where a text branches off; that text begins a tree of its own.

    Args:
        texts: documents of 1 to `max_length` tokens.
        groups: int64 [documents], equal for texts that can share a tree.
    """
    table = pa.table({"group": groups, "ids": _bytes_of(texts.ids, texts.lengths)})
    order = pc.sort_indices(table, [("group", "ascending"), ("ids", "ascending")]).to_numpy().astype(np.int64)
    if not np.array_equal(order, np.arange(len(order))):
        index = ranges(offsets_of(texts.lengths)[:-1][order], texts.lengths[order])
        texts = texts.take(index, texts.lengths[order], texts.rows[order])
    size, begin = texts.lengths, offsets_of(texts.lengths)
    same = np.diff(np.sort(groups, kind="stable"), prepend=-1) == 0
    shared = _shared(texts, same)
    # one less: a branch begins with a copy of the last token that it shares
    depth = _cut(np.where(shared > 1, shared - 1, 0), size, max_length)
    texts, source = _with_sums(texts, depth)

    branch_sizes = size - depth  # the tokens of each text that are stored: its branch
    of_branches = ranges(begin[:-1] + depth, branch_sizes)
    stored = np.full(begin[-1], -1)
    stored[of_branches] = np.arange(len(of_branches))
    branch = offsets_of(branch_sizes)
    forks = np.flatnonzero(depth)
    # a node begins with each branch, and where another branch leaves its text
    heads = np.unique(np.concatenate([branch[:-1], stored[source[begin[forks] + depth[forks]]]]))
    text = np.searchsorted(branch, heads, "right") - 1
    positions = heads - branch[text] + depth[text]
    lengths = np.diff(heads, append=len(of_branches))
    # the texts below a node are those up to the next that branches off at or before the node's start
    reach = branch[_next_at_most(depth, text + 1, positions)] - heads
    roots = np.flatnonzero(positions == 0)
    counts = np.diff(roots, append=len(heads))
    nodes = texts.take(of_branches, lengths, texts.rows[text])
    return Trees(nodes, positions, reach, counts, sum_rows(lengths, offsets_of(counts)))


def begin_branches(positions: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return bool [nodes]: which nodes begin a tree or a branch; the others continue the text of the node before.

    Args:
        positions, lengths: those of the nodes of any number of trees, in order; integers [nodes].
    """
    return (positions == 0) | (positions != np.append(0, (positions + lengths)[:-1])[: len(positions)])


def unfolded(table: pa.Table) -> pa.Table:
    """Return `input_ids`, `rows` and `document_lengths` of sequences of trees with whole texts as documents."""
    ids = flat_numbers(list_parts(table[INPUT_IDS])[1])
    counts, rows = list_parts(table[ROWS])
    lengths, positions = (
        flat_numbers(list_parts(table[name])[1]).astype(np.int64) for name in (DOCUMENT_LENGTHS, POSITIONS)
    )
    heads = np.flatnonzero(begin_branches(positions, lengths))
    branch = np.add.reduceat(lengths, heads) if len(heads) else lengths
    depth = positions[heads]
    size, begin, stored = depth + branch, offsets_of(depth + branch)[:-1], offsets_of(branch)[:-1]
    place = np.arange(int(size.sum()))
    # what a text shares is that of the text before it, which may share it too: hence the chain
    place[ranges(begin, depth)] -= np.repeat(np.roll(size, 1), depth)  # the beginning of the text before
    place = _origin_of(place)
    text = np.searchsorted(begin, place, "right") - 1
    offsets = np.searchsorted(heads, counts)
    tokens = ids[stored[text] + place - begin[text] - depth[text]]
    columns = {
        INPUT_IDS: list_array(offsets_of(size)[offsets], tokens),
        ROWS: list_array(offsets, flat_numbers(rows)[heads]),
        DOCUMENT_LENGTHS: list_array(offsets, size.astype(np.int32)),
    }
    return pa.table(columns)


def _origin_of(place: Ints) -> Ints:
    """Return where a chain of places ends, for each; int64 [places], whose ends are their own places."""
    while not np.array_equal(further := place[place], place):  # each round doubles the length of what is skipped
        place = further
    return place


def _bytes_of(ids: np.ndarray, lengths: Ints) -> pa.LargeBinaryArray:
    """Return lists of ids as bytes that sort as the ids do."""
    ordered = ids.astype(ids.dtype.newbyteorder(">"))
    offsets = pa.py_buffer(offsets_of(lengths * ids.itemsize))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), [None, offsets, pa.py_buffer(ordered)])


def _shared(texts: Documents, same: np.ndarray) -> Ints:
    """Return int64 [documents]: with how many tokens a text begins as the one before it, if that is of the same
    group."""
    before = np.roll(texts.lengths, 1)
    shared = np.where(same, np.minimum(texts.lengths, before), 0)
    starts = offsets_of(texts.lengths)[:-1]
    here, there = ranges(starts, shared), ranges(starts - before, shared)
    differ = texts.ids[here] != texts.ids[there]
    for values in texts.values.values():  # a number per token is kept once, too
        bits = values.view(np.uint32)
        differ |= bits[here] != bits[there]
    at = np.flatnonzero(differ)
    rows, first = np.unique(row_of(shared)[at], return_index=True)
    shared[rows] = at[first] - offsets_of(shared)[rows]
    return shared


def _cut(depth: Ints, size: Ints, max_length: int) -> Ints:
    """Return the depth at which each text branches off, with 0 for those that begin a tree because the one before is
    full; int64 [documents] each."""
    depth = depth.copy()
    while True:
        roots = np.flatnonzero(depth == 0)
        ends = np.cumsum(size - depth)
        tree = np.cumsum(depth == 0) - 1
        over = np.flatnonzero(ends - (ends[roots] - size[roots])[tree] > max_length)
        if not len(over):
            return depth
        # of each tree only the first text that is too far becomes a root: what follows may then fit
        depth[over[np.unique(tree[over], return_index=True)[1]]] = 0


def _with_sums(texts: Documents, depth: Ints) -> tuple[Documents, Ints]:
    """Move the weight of every token that a text shares to the place where the token is stored.

    Returns:
        the texts; and int64 [tokens], the place where each token is stored, counted over all texts.
    """
    begin, forks = offsets_of(texts.lengths), np.flatnonzero(depth)
    place = np.arange(begin[-1])
    shared = ranges(begin[forks], depth[forks] + 1)  # with the copy
    place[shared] -= np.repeat(texts.lengths[forks - 1], depth[forks] + 1)
    place = _origin_of(place)
    moved = shared[texts.weights[shared] > 0]
    weights = texts.weights.copy()
    weights[shared] = 0
    np.add.at(weights, place[moved], texts.weights[moved])
    return replace(texts, weights=weights), place


def _next_at_most(depth: Ints, first: Ints, limit: Ints) -> Ints:
    """Return, for each query, the first text from `first` on whose depth is at most `limit`; int64 [queries] each.

    Minima over 1, 2, 4, … texts let all queries skip forward together.
    """
    minima = [np.append(depth, 0)]  # a root after the last text ends every query
    while (step := 1 << (len(minima) - 1)) < len(depth):
        last = minima[-1]
        minima.append(np.minimum(last[:-step], last[step:]))
    at = first.copy()
    for level, lowest in reversed([*enumerate(minima)]):
        inside = at < len(lowest)
        inside[inside] = lowest[at[inside]] > limit[inside]
        at[inside] += 1 << level
    return at
