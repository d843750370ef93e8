"""Special and added tokens declared by the files next to a tokenizer, with the precedence of transformers 5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import TokenizerError
from tokenloom.resources.tokenizers.tokenizer_json import FLAGS

NAMED = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))

_ENDOFTEXT = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
_BERT = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")}
_LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_ROBERTA = {**_LLAMA, "sep_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>", "mask_token": "<mask>"}
FAMILIES = {
    "gpt2": _ENDOFTEXT,
    "gptneox": {**_ENDOFTEXT, "pad_token": "<|padding|>"},
    "codegen": _ENDOFTEXT,
    "bert": _BERT,
    "distilbert": _BERT,
    "electra": _BERT,
    "roberta": _ROBERTA,
    "llama": _LLAMA,
    "t5": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
}
"""Default tokens of transformers' tokenizer classes, for files that do not declare them, such as those of gpt2."""


@dataclass(frozen=True)
class SpecialTokens:
    """Tokens declared by the files.

    Args:
        named: named tokens by name: bos_token, eos_token, … and custom ones, such as image_token.
        extra: special tokens without a name.
        added: content and flags of the tokens to add, in the order in which new ones get their ids.
    """

    named: dict[str, str]
    extra: list[str]
    added: list[dict[str, Any]]


def read_special_tokens(
    config: Mapping[str, Any],
    special_tokens_map: Mapping[str, Any],
    added_tokens: Mapping[str, Any],
    defaults: Mapping[str, str],
    known: list[dict[str, Any]],
    vocabulary: Mapping[str, int],
) -> SpecialTokens:
    """Return the named and added tokens of a tokenizer.

    Args:
        config, special_tokens_map, added_tokens: the JSON objects of tokenizer_config.json, special_tokens_map.json and
            added_tokens.json; empty if the file does not exist. If the first has `added_tokens_decoder`, the other two
            are ignored.
        defaults: bos_token, eos_token, … for names that no file declares. Tokens that the vocabulary lacks are ignored.
        known: `added_tokens` of tokenizer.json.
        vocabulary: id of each token.

    Raises:
        TokenizerError: a token or an id is malformed.
    """
    declared = {key: value for key, value in config.items() if key in NAMED or _is_custom(key, value)}
    extra: Any = config.get("extra_special_tokens") or config.get("additional_special_tokens", [])
    settled = "extra_special_tokens" in config or "additional_special_tokens" in config
    later: Any = []
    listed: dict[int, dict[str, Any]] = {}
    if "added_tokens_decoder" in config:
        for id, token in _object("added_tokens_decoder", config["added_tokens_decoder"]).items():
            listed[_id(id)] = _token("added_tokens_decoder", token, special=False)
    else:
        for key, value in special_tokens_map.items():
            if key == "extra_special_tokens" and value:
                extra, settled = value if isinstance(value, dict) else [*_values(extra), *_values(value)], True
            elif key == "additional_special_tokens":
                later = value
            elif key in NAMED or _is_custom(key, value):
                declared[key] = value
        texts = {_token(key, declared[key])["content"] for key in NAMED if declared.get(key) is not None}
        texts |= {_token("extra_special_tokens", value)["content"] for value in _values(extra)}
        for token, id in added_tokens.items():
            listed[_id(id)] = _token("added_tokens.json", token, special=token in texts)
        listed |= {token["id"]: token for token in known}
    extra = extra if settled else later
    if isinstance(extra, dict):
        declared, extra = declared | extra, []
    flags = {token["content"]: token for token in listed.values()}
    tokens = {key: _token(key, value) for key, value in declared.items() if value is not None}
    tokens = {key: flags.get(token["content"], token) for key, token in tokens.items()}
    named = {key: token["content"] for key, token in tokens.items()}
    fallbacks = {key: token for key, token in defaults.items() if key not in declared and token in vocabulary}
    existing = {_key(token) for token in known}
    new = [token for _, token in sorted(listed.items()) if _key(token) not in existing]
    texts = {token["content"] for token in [*known, *new]}
    ordered = [tokens[key] for key in (*NAMED, *(key for key in tokens if key not in NAMED)) if key in tokens]
    unnamed = [_token("extra_special_tokens", value) for value in _values(extra)]
    ordered += unnamed
    new += {_key(token): token for token in ordered if token["content"] not in texts}.values()
    names = {*named.values()}
    added = [{**token, "special": token["special"] or token["content"] in names} for token in new]
    return SpecialTokens({**named, **fallbacks}, [token["content"] for token in unnamed], added)


def _key(token: dict[str, Any]) -> tuple[Any, ...]:
    """Return what makes two tokens the same: content and flags."""
    return token["content"], *(token.get(flag, False) for flag in FLAGS)


def _is_custom(key: str, value: Any) -> bool:
    """Return whether a setting declares a custom token of the model, such as image_token."""
    return key.endswith("_token") and key not in NAMED and isinstance(value, str)


def _values(extra: Any) -> list[Any]:
    if not isinstance(extra, list | dict | None):
        raise TokenizerError(f"extra_special_tokens must be a list or an object, got {str(extra)[:80]}")
    return list(extra.values() if isinstance(extra, dict) else extra or [])


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TokenizerError(f"{name} is not a JSON object")
    return value


def _id(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise TokenizerError(f"{str(value)[:80]!r} is not a token id") from None


def _token(name: str, value: Any, special: bool = True) -> dict[str, Any]:
    """Return content and flags of a token, given as text or as an object, as `AddedToken` is serialized."""
    if isinstance(value, str):
        return {"content": value, **dict.fromkeys(FLAGS, False), "special": special, "normalized": not special}
    flags = {flag: value[flag] for flag in FLAGS if flag in value} if isinstance(value, dict) else {}
    if (
        not isinstance(value, dict)
        or not isinstance(value.get("content"), str)
        or not all(isinstance(flag, bool) for flag in flags.values())
    ):
        raise TokenizerError(f"{name}: {str(value)[:80]} is not a token")
    special = flags.get("special", special)
    return {**_token(name, value["content"], special), **flags}
