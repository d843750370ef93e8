"""Statistics of one array that can be merged: lengths, distinct values, traits of text, and examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.tables.hashes import Hashes, hash_array
from tokenloom.resources.tables.ragged import Ints, flat_numbers, offsets_of, sum_rows

KEPT_HASHES = 1024
FEW_VALUES, SHORT_VALUE = 16, 64
SAMPLED_ROWS, READ_CHARACTERS = 512, 1024
EXAMPLES, EXAMPLE_CHARACTERS = 3, 120
BUCKETS_PER_OCTAVE = 16

_ENDED = r"""["'”’»)\]\s]*$"""
_SPEAKER = r"(?:[A-Za-z0-9_#.' -]{1,24}|[^\s:：]{1,6})[:：]\s"
TRAITS: dict[str, str] = {
    "number": r"^\s*[-+]?[$€£¥]?\d[\d.,_ ]*(?:[eE][-+]?\d+)?%?\s*$",
    "url": r"^\s*(?:https?|ftp|s3|gs)://\S+\s*$",
    "identifier": r"^[!-~]+$",
    "sentences": rf"[.!?؟।…]{_ENDED}|[.!?؟।]\s|。|！|？",
    "question": rf"[?？؟]{_ENDED}",
    "transcript": r"(?s)\n\nHuman:.*\n\nAssistant:",
    "turns": rf"(?s)^{_SPEAKER}.*\n{_SPEAKER}",
    "json": r"^\s*(?:\{\s*[\"}]|\[\s*[\"{\[\]\d-])",
    "multiline": r"\n.*\S",
}
"""Traits of text as regular expressions: a number, a URL, one word without spaces, sentences, a question, an HH-RLHF
transcript, lines that start with a speaker, JSON, several lines."""


def length_buckets(lengths: Ints) -> Ints:
    """Return a histogram of lengths, int64 [buckets], with buckets that grow with the length.

    Each length below 16 has its own bucket. Above, each octave has 16 buckets, so that the middle of a bucket is
    within 1/32 of every length in it. The layout is that of HdrHistogram.
    """
    # frexp's exponent is the number of bits: 4 of them index a bucket, the others are the octave.
    octave = np.maximum(np.frexp(lengths.astype(np.float64))[1] - 5, 0)
    return np.bincount(octave * BUCKETS_PER_OCTAVE + (lengths >> octave)).astype(np.int64)


def percentile(buckets: Ints, fraction: float, longest: int) -> int:
    """Return the length that `fraction` of the values do not exceed: exact below 16, else within half a bucket.

    Args:
        buckets: a histogram as `length_buckets` returns it.
        longest: the longest length; the result is never larger.
    """
    # The inverse of `length_buckets`: from the number of a bucket to its octave, and to the middle of its lengths.
    cumulative = np.cumsum(buckets)
    bucket = int(np.searchsorted(cumulative, max(1, np.ceil(fraction * cumulative[-1]))))
    octave = max(bucket // BUCKETS_PER_OCTAVE - 1, 0)
    low = (bucket - octave * BUCKETS_PER_OCTAVE) << octave
    return min(low + (1 << octave) // 2, longest)


def smallest_hashes(array: pa.Array) -> Hashes:
    """Return the smallest distinct hashes of the values, uint64 [at most KEPT_HASHES], ascending.

    Empty if the values' type has no text form.
    """
    # Hashing is what costs: columns of few values are reduced to these first.
    if pa.types.is_string(array.type) and len(array[:SAMPLED_ROWS].unique()) <= FEW_VALUES:
        array = array.unique()
    if pa.types.is_integer(array.type):
        array = array.unique()
    try:
        hashes, _ = hash_array(array)
    except (pa.ArrowException, ValueError, OverflowError):
        return np.zeros(0, np.uint64)
    if len(hashes) <= KEPT_HASHES:
        return np.unique(hashes)
    # Only the smallest hashes count: cut off the rest before sorting, and fall back if too few are left.
    share = min(4 * KEPT_HASHES / len(hashes), 0.5)
    smallest = np.unique(hashes[hashes < np.uint64(share * 2.0**64)])
    return (smallest if len(smallest) >= KEPT_HASHES else np.unique(hashes))[:KEPT_HASHES]


def estimate_distinct(smallest: Hashes) -> int:
    """Return the number of distinct values: exact below KEPT_HASHES, else an estimate with a standard error of 3 %.

    The estimator uses the k minimum values: Bar-Yossef et al., RANDOM 2002; unbiased as in Beyer et al., SIGMOD 2007.
    """
    if len(smallest) < KEPT_HASHES:
        return len(smallest)
    return round((KEPT_HASHES - 1) * 2.0**64 / float(smallest[KEPT_HASHES - 1]))


def few_values(array: pa.Array, distinct: int) -> dict[str, int] | None:
    """Return all values as text, sorted, and how often each occurs, if they are few and short, else None.

    Args:
        distinct: a lower bound of the number of distinct values.
    """
    if distinct > FEW_VALUES or not len(array):
        return None
    values, counts = array.value_counts().flatten()
    if len(values) > FEW_VALUES:
        return None
    by_text: Counter[str] = Counter()
    for value, count in zip(values.cast(pa.string()).to_pylist(), counts.to_pylist(), strict=True):
        by_text[value] += count
    return dict(sorted(by_text.items())) if all(len(value) <= SHORT_VALUE for value in by_text) else None


class TextSample(NamedTuple):
    """An evenly spaced sample of texts: their begins, their ends, and whether each begin is the whole text."""

    heads: pa.Array
    tails: pa.Array
    whole: pa.Array

    @classmethod
    def of(cls, filled: pa.Array) -> TextSample:
        """Return a sample of strings, none of which is null or empty."""
        sample = filled
        # Evenly spaced, so that the sample is the same in every run and sees rows that are sorted by their kind.
        if len(filled) > SAMPLED_ROWS:
            indices = np.unique(np.linspace(0, len(filled) - 1, SAMPLED_ROWS).astype(np.int64))
            sample = filled.take(pa.array(indices))
        heads = pc.utf8_slice_codeunits(sample, 0, READ_CHARACTERS)
        whole = pc.equal(pc.utf8_length(heads), pc.utf8_length(sample))
        return cls(heads.cast(pa.string()), pc.utf8_slice_codeunits(sample, -8).cast(pa.string()), whole)


def text_traits(samples: Sequence[TextSample]) -> Ints:
    """Count the texts with each of `TRAITS`, int64 [samples, traits].

    Each trait is looked for in all samples at once: a table can have thousands of columns.
    """
    if not samples:
        return np.zeros((0, len(TRAITS)), np.int64)
    heads, tails, whole = map(pa.concat_arrays, zip(*samples, strict=True))
    offsets, counts = offsets_of(np.array([len(sample.heads) for sample in samples])), []
    for name, pattern in TRAITS.items():
        matches = pc.match_substring_regex(tails if name == "question" else heads, pattern)
        if name in ("number", "url", "identifier"):
            matches = pc.and_(matches, whole)
        counts.append(sum_rows(flat_numbers(matches.cast(pa.uint8())), offsets))
    return np.stack(counts, axis=1)


def examples(array: pa.Array, filled: Ints) -> list[str]:
    """Return the first values as text, shortened.

    Args:
        filled: the indices of values that are not empty.
    """
    chosen = [array[int(place)] for place in filled[:EXAMPLES]]
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        chosen = [pc.utf8_slice_codeunits(value, 0, EXAMPLE_CHARACTERS + 1) for value in chosen]
    texts = map(_as_text, chosen)
    return [text if len(text) <= EXAMPLE_CHARACTERS else f"{text[: EXAMPLE_CHARACTERS - 1]}…" for text in texts]


def _as_text(value: pa.Scalar) -> str:
    try:
        if isinstance(value, pa.ListScalar | pa.LargeListScalar) and value.is_valid:  # a row can have millions
            return str(value.values[:EXAMPLE_CHARACTERS].to_pylist())
        return str(value.as_py())
    except (ValueError, OverflowError, ImportError):  # a time that Python cannot represent
        return f"<{value.type}>"
