"""Tokenizes a whole chunk with gigatoken, and finds the segments where `tokenizers` can give other ids.

These are the segments with a disputed code point, those that the normalizer changes, and those that contain a control
token's text. The latter show in the result: the lengths of their tokens do not add up to the text.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.segments import Segments
from tokenloom.assets.tokens.engine_certificate import EngineCertificate, unequal
from tokenloom.assets.tokens.engines import Gigatoken, Ids, Reference
from tokenloom.assets.tokens.token_bytes import TokenBytes
from tokenloom.assets.tokens.vocabulary import MARK, Vocabulary, normal_form
from tokenloom.errors import TokenizerError
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.store.certificates import CertificateStore
from tokenloom.resources.tables.ragged import Ints, list_array, list_parts, text_parts

SAMPLE, SAMPLE_BYTES, LONGEST_SAMPLE = 16, 4 << 10, 64 << 10
"""Number of segments of a chunk that are compared with `tokenizers`, and their largest size in bytes. If all segments
are larger, the shortest one is compared, up to `LONGEST_SAMPLE`."""

Tokenized = tuple[Ids, Ints, TokenBytes, npt.NDArray[np.bool_]]
"""ids, offsets, bytes and exact, as in `Encoded`."""


class GigatokenEncoder:
    """A gigatoken tokenizer with its certificate.

    Args:
        content: tokenizer.json, with control tokens marked as special.
        parsed: the same, parsed.
        control: the ids of the control tokens.
        keep_control: whether the text of control tokens in content becomes control tokens.
        vocabulary: the bytes that ids stand for.
        reference: the same tokenizer in `tokenizers`.
        certificates: the store's certificates.
    """

    def __init__(
        self,
        content: str,
        parsed: dict[str, Any],
        control: dict[str, int],
        keep_control: bool,
        vocabulary: Vocabulary,
        reference: Reference,
        certificates: CertificateStore,
    ):
        self._reference, self._form = reference, normal_form(parsed)
        added = parsed["added_tokens"]
        plain = [token for token in added if _is_plain(token, vocabulary.certain)]
        self.refused = _refusal([token for token in added if keep_control or not token["special"]], self._form)
        if self.refused:
            return
        bare = {**parsed, "post_processor": None, "truncation": None, "padding": None, "added_tokens": plain}
        listed = {token["content"] for token in added}
        unlisted = [_special(token, index) for token, index in control.items() if token not in listed]
        self._content = json.dumps({**parsed, "added_tokens": [*added, *unlisted]}) if unlisted else content
        lacking = [token["content"] for token in [*added, *unlisted] if token not in plain]
        try:
            self._certificate = EngineCertificate(
                bare, digest_bytes(content.encode()), certificates, lambda: (self._engine, reference), lacking
            )
            self.refused = self._certificate.refused
            if not self.refused:
                _ = self._engine
        except (ImportError, TokenizerError) as error:
            self.refused = str(error)
        not_plain = [token["id"] for token in added if token not in plain]
        self._vocabulary = vocabulary.without([*not_plain, *control.values()])

    @cached_property
    def _engine(self) -> Gigatoken:
        return Gigatoken(self._content)

    @property
    def key(self) -> str:
        """The certificate's key."""
        return self._certificate.key

    def encode(self, cut: Segments, control: Ids) -> Tokenized | None:
        """Tokenize segments; the tokens of segments that are not exact must be ignored.

        Args:
            control: uint32 [control segments], their ids.

        Returns:
            the tokens, or None if gigatoken cannot be trusted with this chunk.
        """
        ids, offsets = self._engine.ids(cut.text)
        tokens = pa.array(ids)
        lengths = self._vocabulary.bytes_of(tokens)
        exact = self._vocabulary.adds_up(lengths, offsets, cut.text)
        exact &= ~self._doubtful(cut.text)
        if not self._vocabulary.certain:
            exact &= self._vocabulary.spelled(tokens, offsets, cut.text)
        at_control = np.flatnonzero(cut.control)
        exact[at_control] = np.diff(offsets)[at_control] == 1
        control_right = exact[at_control].all() and (ids[offsets[at_control]] == control).all()
        if not (control_right and self._sample_agrees(cut, exact, ids, offsets)):
            return None
        return ids, offsets, lengths, exact

    def _doubtful(self, texts: pa.Array) -> npt.NDArray[np.bool_]:
        """Return bool [texts]: whether the engines can tokenize the text differently."""
        bounds, data = text_parts(texts)
        doubtful = np.zeros(len(texts), bool)
        places, points = code_points(data)
        bad = [places[self._certificate.disputed(points) | (self._vocabulary.marked & (points == ord(MARK)))]]
        if self._certificate.disputes_ascii:
            ascii_disputed = np.append(self._certificate.disputed(np.arange(128)), np.zeros(128, bool))
            bad.append(np.flatnonzero(ascii_disputed[data]))
        doubtful[np.searchsorted(bounds, np.concatenate(bad), side="right") - 1] = True
        if self._form and len(places):
            doubtful |= ~np.asarray(pc.equal(pc.utf8_normalize(texts, self._form), texts))
        return doubtful

    def _sample_agrees(self, cut: Segments, exact: npt.NDArray[np.bool_], ids: Ids, offsets: Ints) -> bool:
        """Return whether `tokenizers` gives the same ids for a sample of the segments; if not, void the certificate."""
        lengths = cut.end - cut.start
        used = np.flatnonzero(exact & ~cut.control & (lengths > 0))
        limit = np.clip(lengths[used].min(initial=LONGEST_SAMPLE), SAMPLE_BYTES, LONGEST_SAMPLE)
        eligible = used[lengths[used] <= limit]
        if not len(eligible):
            return True
        spread = eligible[np.linspace(0, len(eligible) - 1, min(SAMPLE, len(eligible))).astype(np.int64)]
        picked = pa.array(np.unique(np.append(spread, eligible[np.argmax(lengths[eligible])])))
        texts = cut.text.take(picked)
        cuts, values = list_parts(list_array(offsets, ids).take(picked))
        wrong = unequal((values.to_numpy(), cuts), self._reference.ids(texts))
        if wrong.any():
            self._certificate.void(f"tokenized differently: {texts.filter(pa.array(wrong))[0].as_py()[:200]!r}")
            self.refused = self._certificate.refused
        return not self._certificate.refused


def code_points(data: npt.NDArray[np.uint8]) -> tuple[Ints, npt.NDArray[np.int64]]:
    """Return the byte positions and the code points of the non-ASCII characters in UTF-8 data."""
    places = np.flatnonzero(data >= 0xC0)
    lead = data[places].astype(np.int64)
    points = (lead & 0x1F) << 6 | (data[places + 1] & 0x3F)
    longer = np.flatnonzero(lead >= 0xE0)
    points[longer] = (lead[longer] & 0x0F) << 12 | (points[longer] & 0x3F) << 6 | (data[places[longer] + 2] & 0x3F)
    longest = longer[lead[longer] >= 0xF0]
    points[longest] = (lead[longest] & 0x07) << 18 | (points[longest] & 0xFFF) << 6 | (data[places[longest] + 3] & 0x3F)
    return places, points


def _is_plain(token: dict[str, Any], certain: bool) -> bool:
    """Return whether both engines find an added token in the same way, wherever its text is."""
    flags = ("special", "single_word", "lstrip", "rstrip")
    return not any(token[flag] for flag in flags) and (certain or (not token["normalized"]))


def _refusal(added: list[dict[str, Any]], form: str | None) -> str:
    """Return why added tokens rule gigatoken out, or ""."""
    hidden = (token["normalized"] and (form is None or (form and not token["content"].isascii())) for token in added)
    return "added tokens are matched in normalized text" if any(hidden) else ""


def _special(content: str, index: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, "special": True, **flags}
