"""tokenizer.json, the format that every tokenizer is converted to: parse it, check it and its work, add tokens to it.

`tokenizers` holds a normalized text as a whole, with two numbers for each byte, and ends the process if memory is
short. So what a normalizer can make of a text is computed from its steps, before it runs.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from tokenloom.errors import TokenizerError
from tokenloom.resources.tables.json_text import read_json_value
from tokenloom.resources.visible import first_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
MAX_ID = 1 << 24
"""Token ids must be smaller than this."""

LONGEST = 1000
"""Maximum length of a piece in characters or bytes. The longest of real vocabularies have a few hundred."""

_checked: dict[bytes, Tokenizer] = {}
"""The last tokenizer that was checked, by content, if it is not used yet."""


def added_token(id: int, content: str, special: bool) -> dict[str, Any]:
    """Return an entry of `added_tokens` that matches its exact text anywhere."""
    return {"id": id, "content": content, **dict.fromkeys(FLAGS, False), "special": special}


def special_token(content: str) -> dict[str, Any]:
    """Return a special token that matches its exact text anywhere and does not have an id yet."""
    return {"content": content, **dict.fromkeys(FLAGS, False), "special": True}


def parse_json(name: str, content: bytes) -> dict[str, Any]:
    """Parse the JSON object in a tokenizer's file.

    Raises:
        TokenizerError: the content is not a JSON object.
    """
    try:
        parsed = read_json_value(content)
    except ValueError as error:
        raise TokenizerError(f"{name} is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise TokenizerError(f"{name} is not a JSON object")
    return parsed


def vocabulary(parsed: dict[str, Any]) -> dict[str, int]:
    """Return the id of each token, including added tokens.

    Args:
        parsed: a tokenizer.json.

    Raises:
        TokenizerError: tokenizer.json is malformed, its vocabulary is empty, two tokens share an id, or ids have wide
            gaps.
    """
    model, added = parsed.get("model"), parsed.get("added_tokens")
    entries = model.get("vocab", {}) if isinstance(model, dict) else None
    if isinstance(entries, list) and all(isinstance(entry, list) and len(entry) == 2 for entry in entries):
        entries = {text: id for id, (text, _) in enumerate(entries) if isinstance(text, str)}
    if not isinstance(entries, dict) or not isinstance(added, list):
        raise TokenizerError("tokenizer.json must contain a model with a vocabulary, and a list added_tokens")
    if not entries:
        raise TokenizerError("tokenizer.json: the model's vocabulary is empty; use the file of a trained tokenizer")
    for token in added:
        valid = isinstance(token, dict) and isinstance(token.get("content"), str)
        if not valid or not all(isinstance(flag, bool) for flag in _flags(token).values()):
            raise TokenizerError(f"tokenizer.json: added_tokens contains {str(token)[:80]}, which is not a token")
        _check_length(token["content"])
    ids: dict[str, Any] = {
        **entries,
        **{token["content"]: token.get("id") for token in added if token["content"] not in entries},
    }
    numbers = ids.values()
    if {*map(type, numbers)} != {int} or min(numbers) < 0 or max(numbers) >= MAX_ID:
        token = next(token for token, id in ids.items() if type(id) is not int or not 0 <= id < MAX_ID)
        raise TokenizerError(
            f"tokenizer.json: the token {token!r} has the id {ids[token]!r}, but ids must be integers below {MAX_ID:,}"
        )
    if len(set(ids.values())) != len(ids):
        by_id: dict[int, str] = {}
        for token, id in ids.items():
            if (other := by_id.setdefault(id, token)) != token:
                raise TokenizerError(f"tokenizer.json: the tokens {other!r} and {token!r} share the id {id}")
    highest = max(ids.values())
    # arrays over ids are as long as the highest: a crafted one must not make them huge
    if highest > 0xFFFF and (len(ids) <= 0x10000 or highest > 2 * len(ids)):
        raise TokenizerError(f"tokenizer.json: ids have wide gaps: {len(ids):,} tokens have ids up to {highest:,}")
    return ids


@lru_cache(maxsize=2)
def token_ids(content: bytes) -> Mapping[str, int]:
    """Return the id of each token of a tokenizer.json, including added tokens.

    Raises:
        TokenizerError: it is not JSON, or as `vocabulary`.
    """
    try:
        return vocabulary(msgspec.json.decode(content, type=dict))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TokenizerError(f"tokenizer.json is not valid JSON: {error}") from error


def vocab_size(content: bytes) -> int:
    """Return the highest id of a valid tokenizer.json, plus one."""
    return max(token_ids(content).values()) + 1


def _check_length(token: str) -> None:
    if len(token) > LONGEST:
        raise TokenizerError(f"the added token {token[:40]!r}… has {len(token):,} characters, more than {LONGEST:,}")


@lru_cache(maxsize=4)
def check_tokenizer(content: bytes) -> None:
    """Check that `tokenizers` can load a tokenizer.json. The next `load_tokenizer` of the same content is immediate.

    Raises:
        TokenizerError: it cannot.
    """
    loaded = load_tokenizer(content)
    _checked.clear()
    _checked[content] = loaded


def load_tokenizer(content: bytes) -> Tokenizer:
    """Load a tokenizer.json with `tokenizers`. The result is not shared.

    Raises:
        TokenizerError: `tokenizers` cannot load it.
    """
    if (loaded := _checked.pop(content, None)) is not None:
        return loaded
    from tokenizers import Tokenizer

    for charsmap in re.findall(rb'"precompiled_charsmap":\s*"([^"]*)"', content):
        if not is_charsmap(charsmap):
            raise TokenizerError("tokenizer.json: its precompiled_charsmap is damaged")
    with naming_tokenizer("cannot be loaded"):
        return Tokenizer.from_str(content.decode())


@contextmanager
def naming_tokenizer(problem: str) -> Iterator[None]:
    """Raise any error or panic of a library that tokenizes as a TokenizerError that names tokenizer.json.

    Args:
        problem: what the library cannot do with the file.

    Raises:
        TokenizerError: the library failed.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError, TokenizerError):
        raise
    except BaseException as error:  # panics in Rust do not derive from Exception
        raise TokenizerError(f"tokenizer.json {problem}: {first_line(error)}") from error


def is_charsmap(coded: bytes) -> bool:
    """Return whether a base64-encoded normalization table starts with the size of a trie that fits into it."""
    try:
        table = base64.b64decode(coded, validate=True)
    except binascii.Error:
        return False
    return not table or 4 <= len(table) >= 4 + int.from_bytes(table[:4], "little")


def with_added_tokens(content: bytes, parsed: dict[str, Any], tokens: Sequence[dict[str, Any]]) -> bytes:
    """Return a tokenizer.json with more added tokens. Tokens of the vocabulary keep their ids, others get the next ids,
    in order.

    Args:
        content: tokenizer.json.
        parsed: the same, parsed.
        tokens: content and flags of each token to add.
    """
    existing = {token["content"]: _flags(token) for token in parsed["added_tokens"]}
    missing = [token for token in tokens if existing.get(token["content"]) != _flags(token)]
    if not missing:
        return content
    for token in missing:
        _check_length(token["content"])
    from tokenizers import AddedToken

    tokenizer = load_tokenizer(content)
    with naming_tokenizer("cannot get more tokens"):
        tokenizer.add_tokens([AddedToken(token["content"], **_flags(token)) for token in missing])
        return tokenizer.to_str().encode()


def _flags(token: dict[str, Any]) -> dict[str, bool]:
    return {flag: token.get(flag, False) for flag in FLAGS}


def with_ends(parsed: dict[str, Any], start: str | None, end: str | None, ids: dict[str, int]) -> dict[str, Any]:
    """Return a parsed tokenizer.json with a post-processor that puts special tokens before and after each text.

    Args:
        start, end: the special tokens, or None.
        ids: id of each token.
    """
    around = [start, None, end]
    template = [
        {"SpecialToken": {"id": token, "type_id": 0}} if token else {"Sequence": {"id": "A", "type_id": 0}}
        for position, token in enumerate(around)
        if token or position == 1
    ]
    second = json.loads(json.dumps(template).replace('"type_id": 0', '"type_id": 1').replace('"A"', '"B"'))
    special = {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (start, end) if token}
    processor = {"type": "TemplateProcessing", "single": template, "pair": template + second, "special_tokens": special}
    return {**parsed, "post_processor": processor}


def first_special(processor: Any) -> str | None:
    """Return the special token that a post-processor puts before a text, or None."""
    if not processor:
        return None
    if processor["type"] == "Sequence":
        return next((token for inner in processor["processors"] if (token := first_special(inner))), None)
    if processor["type"] == "TemplateProcessing":
        first = processor["single"][0] if processor["single"] else {}
        return first["SpecialToken"]["id"] if "SpecialToken" in first else None
    return processor["cls"][0] if "cls" in processor else None


USUAL_GROWTH, MOST_GROWTH = 40, 1 << 12
"""Most characters that one becomes in known tokenizers, and in those that are read."""

MOST_CHARACTERS = 4 << 20
"""Most characters that a row, or all added tokens, become by a tokenizer with more than the usual growth."""

LONGEST_WORD = 1000
"""Most characters of a word of WordPiece, whose work grows with their square. Known tokenizers have 100."""

_CAN_BE_EMPTY = re.compile(r"[?*^$|]|\\[bBAzZG]|\{[0,]|\A\Z")
"""What a pattern has that can match between two characters."""


class _Parts(msgspec.Struct):
    normalizer: Any = None
    pre_tokenizer: Any = None


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    inner = part.get("normalizers", part.get("pretokenizers")) if isinstance(part, dict) else None
    if isinstance(inner, list):
        for each in inner:
            yield from _steps(each)
    elif isinstance(part, dict):
        yield part


def _growth(step: dict[str, Any]) -> float:
    """Return how many characters a step makes of one at most."""
    kind, content, pattern = step.get("type"), step.get("content"), step.get("pattern")
    if kind in ("ByteLevel", "Prepend"):
        return 1.0 + len(str(step.get("prepend", "1")))
    if kind == "Replace" and isinstance(content, str) and isinstance(pattern, dict):
        text = pattern.get("String") or ""
        empty = bool(content) and not text and _CAN_BE_EMPTY.search(str(pattern.get("Regex", ""))) is not None
        return max((len(content) + empty) / max(len(text), 1), 1.0)
    if kind == "Precompiled":
        table = base64.b64decode(str(step.get("precompiled_charsmap")) + "===")
        texts = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
        return max(len(max(texts, key=len).decode(errors="replace")), 1.0)
    return 1.0


def growth(steps: Sequence[dict[str, Any]]) -> float:
    """Return how many characters steps make of one at most, one after the other.

    A text that replaces one is replaced again only by a pattern with a character of it.
    """
    most, made, any_made = 1.0, set[str](), False
    for step in steps:
        once, pattern, is_replace = _growth(step), step.get("pattern"), step.get("type") == "Replace"
        text = pattern.get("String") if is_replace and isinstance(pattern, dict) else None
        apart = isinstance(text, str) and text != "" and made.isdisjoint(text) and not any_made
        # a pattern with no character of what earlier steps wrote cannot find their texts: growths do not multiply
        most = min(max(most, once) if apart else most * once, 1e30)
        any_made |= not is_replace and most > 1
        made |= {*str(step.get("content", ""))}
    return most


def growth_of(content: bytes) -> float:
    """Return the growth of a tokenizer.json."""
    parts = msgspec.json.decode(content, type=_Parts)
    return growth([*_steps(parts.normalizer), *_steps(parts.pre_tokenizer)])


def check_work(parsed: dict[str, Any]) -> None:
    """Refuse a tokenizer.json that can make far more of a text than any known one.

    Raises:
        TokenizerError: the message names the part.
    """
    model = parsed["model"]
    texts = {name: str(model.get(name) or "") for name in ("continuing_subword_prefix", "end_of_word_suffix")}
    if isinstance(model["vocab"], list):
        texts["vocab"] = max((piece for piece, _ in model["vocab"] if isinstance(piece, str)), key=len, default="")
    long = next((name for name, text in texts.items() if len(text) > LONGEST), None)
    most = growth([*_steps(parsed.get("normalizer")), *_steps(parsed.get("pre_tokenizer"))])
    added = most * sum(len(token["content"]) for token in parsed["added_tokens"] if token.get("normalized", True))
    if long is not None:
        reason = f"{long} has a text of {len(texts[long]):,} characters, but at most {LONGEST:,} are supported"
    elif isinstance(word := model.get("max_input_chars_per_word"), int) and word > LONGEST_WORD:
        reason = f"max_input_chars_per_word is {word:,}, but at most {LONGEST_WORD:,} is supported; 100 is usual"
    elif most > MOST_GROWTH:
        reason = f"its normalizer can make {most:,.0f} characters of one, more than {MOST_GROWTH:,}"
    elif most > USUAL_GROWTH and added > MOST_CHARACTERS:
        reason = f"its normalizer can make {added:,.0f} characters of the added tokens"
    else:
        return
    raise TokenizerError(f"tokenizer.json: {reason}; use the file of a trained tokenizer")
