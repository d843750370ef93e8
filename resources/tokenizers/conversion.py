"""Converts a tokenizer's files, of any format, to a tokenizer.json, its special tokens and its chat template."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from tokenloom.config import PipelineConfig
from tokenloom.errors import TokenizerError
from tokenloom.resources.tokenizers.sentencepiece import parse_sentencepiece, sentencepiece_json
from tokenloom.resources.tokenizers.special_tokens import FAMILIES, SpecialTokens, read_special_tokens
from tokenloom.resources.tokenizers.tiktoken import (
    ENCODINGS,
    END_OF_TEXT,
    Encoding,
    is_ranks,
    parse_ranks,
    tiktoken_json,
)
from tokenloom.resources.tokenizers.tokenizer_files import (
    ADDED_TOKENS,
    CONFIG,
    MODEL_CONFIG,
    MORE_TEMPLATES,
    SETTING,
    SPECIAL_TOKENS_MAP,
    TEMPLATE,
    TOKENIZER,
    TokenizerFiles,
)
from tokenloom.resources.tokenizers.tokenizer_json import (
    check_tokenizer,
    load_tokenizer,
    parse_json,
    special_token,
    vocabulary,
    with_added_tokens,
    with_ends,
)

T5, LLAMA = ("t5", "mt5", "umt5"), ("llama", "codellama", "mistral", "mixtral", "phi3")
SENTENCEPIECE_IDS = ("", "pretrainedtokenizerfast", "tokenizersbackend", "gemma", "gemma2", "gemma3", *LLAMA, *T5)
"""Families of tokenizers whose ids start with those of their SentencePiece model."""


@dataclass(frozen=True)
class ConvertedTokenizer:
    """A tokenizer in a common format.

    Args:
        content: tokenizer.json, with every token that the files add.
        parsed: the same, parsed.
        config: tokenizer_config.json, or {}.
        special: named special tokens, such as bos_token, and unnamed ones.
        vocabulary: id of each token.
        chat_template: its text, or None.
        lacked: tokens that the files lack and the YAML adds.
    """

    content: bytes
    parsed: dict[str, Any]
    config: dict[str, Any]
    special: SpecialTokens
    vocabulary: dict[str, int]
    chat_template: str | None
    lacked: tuple[str, ...] = ()


def with_more_tokens(converted: ConvertedTokenizer, tokens: Sequence[str]) -> ConvertedTokenizer:
    """Return a tokenizer with special tokens that its files lack; they get the next ids, in order."""
    missing = [token for token in dict.fromkeys(tokens) if token not in converted.vocabulary]
    if not missing:
        return converted
    content = with_added_tokens(converted.content, converted.parsed, [special_token(token) for token in missing])
    parsed = json.loads(content)
    return replace(converted, content=content, parsed=parsed, vocabulary=vocabulary(parsed), lacked=tuple(missing))


def convert(config: PipelineConfig, files: TokenizerFiles) -> ConvertedTokenizer:
    """Convert a tokenizer's files.

    Raises:
        ConfigError: a file is damaged, has an unknown format, or needs another file that is missing.
    """
    try:
        return _convert(files)
    except TokenizerError as error:
        names_file = str(error).startswith(files.vocabulary) and files.name.endswith(files.vocabulary)
        raise config.fault(SETTING, str(error) if names_file else f"{files.name}: {error}") from error


def _convert(files: TokenizerFiles) -> ConvertedTokenizer:
    settings, model, special_tokens_map, added_tokens = (
        parse_json(name, files.settings.get(name, b"{}"))
        for name in (CONFIG, MODEL_CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS)
    )
    family = _family(settings.get("tokenizer_class")) or _family(model.get("model_type"))
    is_json = files.content.lstrip()[:1] in (b"{", b"[")
    if is_json:
        base = Base(files.content, {})
    else:
        base = _from_ranks(files, settings) if _has_ranks(files) else _from_model(files, settings, family)
    parsed = parse_json(files.vocabulary, base.content)
    known = vocabulary(parsed)
    check_tokenizer(base.content)
    if "type" not in parsed["model"]:  # tokenizers infers it from the model's fields
        parsed["model"] = {"type": _model_type(base.content), **parsed["model"]}
        base = replace(base, content=json.dumps(parsed, ensure_ascii=False).encode())
    defaults = FAMILIES.get(family, {}) | base.named
    tokens = read_special_tokens(settings, special_tokens_map, added_tokens, defaults, parsed["added_tokens"], known)
    content = with_added_tokens(base.content, parsed, [*base.added, *tokens.added])
    if content is not base.content:
        parsed = parse_json(files.vocabulary, content)
    ids = vocabulary(parsed)
    if not is_json:
        added = [role for role in ("bos", "eos") if settings.get(f"add_{role}_token") is True or role in base.ends]
        start, end = (tokens.named.get(f"{role}_token") if role in added else None for role in ("bos", "eos"))
        parsed = with_ends(parsed, start, end, ids)
        content = json.dumps(parsed, ensure_ascii=False).encode()
    return ConvertedTokenizer(content, parsed, settings, tokens, ids, _chat_template(files, settings))


@dataclass(frozen=True)
class Base:
    """tokenizer.json of the vocabulary's file alone.

    Args:
        content: tokenizer.json.
        named: bos_token, eos_token, … as the file or its format declares them.
        added: tokens that the format adds.
        ends: `bos` or `eos` if tokenizers of this format always put it before or after a text.
    """

    content: bytes
    named: dict[str, str]
    added: tuple[dict[str, Any], ...] = ()
    ends: tuple[str, ...] = ()


def _model_type(content: bytes) -> str:
    return json.loads(load_tokenizer(content).to_str())["model"]["type"]


def _has_ranks(files: TokenizerFiles) -> bool:
    return files.vocabulary.endswith(".tiktoken") or is_ranks(files.content)


def _from_ranks(files: TokenizerFiles, settings: dict[str, Any]) -> Base:
    try:
        _ranks(files.content)
    except ValueError as error:
        raise TokenizerError(f"{files.vocabulary}: {error}") from error
    encoding = ENCODINGS.get(PurePath(files.vocabulary).stem)
    named = {"eos_token": END_OF_TEXT}
    if encoding is None:
        if not isinstance(pattern := settings.get("pat_str"), str):
            raise TokenizerError(
                f"{files.vocabulary} contains tiktoken ranks without a split pattern; rename it to its encoding "
                f"({', '.join(ENCODINGS)}) with the extension .tiktoken, or put a {CONFIG} next to it, with the "
                'pattern as "pat_str" and the special tokens as "added_tokens_decoder"'
            )
        special = settings.get("added_tokens_decoder") or {}
        encoding, named = Encoding(pattern, _special_ids(special)), {}
    try:
        return Base(_ranks_json(files.content, encoding.pattern, tuple(encoding.special.items())), named)
    except ValueError as error:
        raise TokenizerError(f"{files.vocabulary}: {error}") from error


def _special_ids(special: Any) -> dict[str, int]:
    """Return the id of each token in `added_tokens_decoder`."""
    try:
        return {token["content"] if isinstance(token, dict) else token: int(id) for id, token in special.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TokenizerError(f"{CONFIG}: added_tokens_decoder must map ids to tokens") from error


def _from_model(files: TokenizerFiles, settings: dict[str, Any], family: str) -> Base:
    if files.settings and family not in SENTENCEPIECE_IDS:
        raise TokenizerError(
            f"the ids of a {settings.get('tokenizer_class') or family} can differ from those of its SentencePiece "
            f"model; save it with a {TOKENIZER} (`save_pretrained` of transformers), or set the path to "
            f"{files.vocabulary} to use the ids of the model"
        )
    first_only = family in LLAMA and settings.get("legacy") is False
    try:
        content, specials = _model_json(files.content, first_only)
    except (ValueError, TypeError, AttributeError, struct.error) as error:
        reason = error if type(error) is ValueError else "it is damaged"
        raise TokenizerError(
            f"{files.vocabulary} is neither {TOKENIZER} nor tiktoken ranks, and cannot be read as a SentencePiece "
            f"model: {reason}"
        ) from error
    named = {f"{role}_token": token for role, token in specials}
    if family not in T5:
        return Base(content, named)
    if not isinstance(extra := settings.get("extra_ids", 100), int) or not 0 <= extra <= 10_000:
        raise TokenizerError(f"{CONFIG}: extra_ids must be an integer from 0 to 10,000, got {str(extra)[:80]}")
    sentinels = tuple(special_token(f"<extra_id_{number}>") for number in reversed(range(extra)))
    return Base(content, named, sentinels, ("eos",))


@lru_cache(maxsize=1)
def _ranks(content: bytes) -> dict[bytes, int]:
    return parse_ranks(content)


@lru_cache(maxsize=4)
def _ranks_json(content: bytes, pattern: str, special: tuple[tuple[str, int], ...]) -> bytes:
    return tiktoken_json(_ranks(content), Encoding(pattern, dict(special)))


@lru_cache(maxsize=4)
def _model_json(content: bytes, prefix_first_only: bool) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    model = parse_sentencepiece(content)
    return sentencepiece_json(model, prefix_first_only), tuple(model.specials.items())


def _family(name: Any) -> str:
    """Return a tokenizer's class or a model type in the spelling of FAMILIES."""
    text = str(name or "").lower()
    return (
        text if text.startswith("pretrained") else text.removesuffix("fast").removesuffix("tokenizer").replace("_", "")
    )


def _chat_template(files: TokenizerFiles, settings: dict[str, Any]) -> str | None:
    """Return the default chat template: from its own file, tokenizer_config.json, or chat_template.json."""
    own, additional, processor = (files.settings.get(name) for name in (TEMPLATE, *MORE_TEMPLATES))
    try:
        if (text := own or additional) is not None:
            return text.decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{TEMPLATE} is not valid UTF-8: {error}") from error
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if isinstance(template, dict):
        template = template.get("default")
    if template is None and processor is not None:
        template = parse_json(MORE_TEMPLATES[1], processor).get("chat_template")
    if not isinstance(template, str | None):
        raise TokenizerError(f"{CONFIG}: chat_template must be a string")
    return template
