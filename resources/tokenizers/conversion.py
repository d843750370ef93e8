"""Finds the files of the tokenizer that a YAML names (a file, a folder, or a repository on the hub), and converts
them, of any format, to a tokenizer.json, its special tokens and its chat template.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

from tokenloom.config import PipelineConfig
from tokenloom.config.yaml_file import read_small_file
from tokenloom.errors import TokenizerError
from tokenloom.resources.processors.processor import PROCESSOR_FILES
from tokenloom.resources.sources.hub import CHECK_NAME, gated, hub_unavailable, is_gated, quiet_retries
from tokenloom.resources.sources.resolve import local_path
from tokenloom.resources.tokenizers.formats import (
    ENCODINGS,
    END_OF_TEXT,
    Encoding,
    is_ranks,
    parse_ranks,
    parse_sentencepiece,
    sentencepiece_json,
    tiktoken_json,
)
from tokenloom.resources.tokenizers.tokenizer_json import (
    FLAGS,
    check_tokenizer,
    check_work,
    load_tokenizer,
    parse_json,
    special_token,
    vocabulary,
    with_added_tokens,
    with_ends,
)

TOKENIZER, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
SPECIAL_TOKENS_MAP, ADDED_TOKENS, MODEL_CONFIG = "special_tokens_map.json", "added_tokens.json", "config.json"
MORE_TEMPLATES = ("additional_chat_templates/default.jinja", "chat_template.json")
VOCABULARIES = (
    TOKENIZER,
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "tiktoken.model",
)
SETTINGS = (CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS, MODEL_CONFIG, TEMPLATE, *MORE_TEMPLATES)
SETTING = "tokenizer.name_or_path"
LARGEST_FILE, LARGEST_SETTINGS = 512 << 20, 64 << 20
"""Most bytes of a vocabulary, and of each other file."""


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer's files, not parsed.

    Args:
        name: the tokenizer's name in the YAML.
        vocabulary: name of the file with the vocabulary.
        content: content of that file.
        settings: content of the other files in its folder, by name; empty if the YAML names the file itself.
    """

    name: str
    vocabulary: str
    content: bytes
    settings: dict[str, bytes]


def find_files(config: PipelineConfig, name: str) -> TokenizerFiles:
    """Read the files of a tokenizer. If the name is a file, only that file is read, except for tiktoken ranks, which
    need the settings next to them.

    Raises:
        ConfigError: no such file, folder or repository exists, or it has no vocabulary.
        TokenizerError: a file cannot be read.
    """
    path = local_path(config, name)
    if path is None:
        path = _from_hub(config, name)
    try:
        if path.is_file():
            content = read_small_file(path, LARGEST_FILE)
            return TokenizerFiles(name, path.name, content, _settings(path.parent) if is_ranks(content) else {})
        ranks = sorted(entry.name for entry in path.glob("*.tiktoken"))
        vocabularies = [entry for entry in (*VOCABULARIES, *ranks) if (path / entry).is_file()]
        if not vocabularies:
            raise config.fault(
                SETTING,
                f"{name} contains no {TOKENIZER}, SentencePiece model or tiktoken ranks; if transformers can load it, "
                f"AutoTokenizer.from_pretrained(…).save_pretrained(…) writes a {TOKENIZER}",
            )
        content = read_small_file(path / vocabularies[0], LARGEST_FILE)
        return TokenizerFiles(name, vocabularies[0], content, _settings(path))
    except OSError as error:
        raise TokenizerError(f"{name}: cannot be read: {error.strerror}") from error


def _settings(folder: Path) -> dict[str, bytes]:
    entries = [entry for entry in SETTINGS if (folder / entry).is_file()]
    return {entry: read_small_file(folder / entry, LARGEST_SETTINGS) for entry in entries}


def processor_files(config: PipelineConfig, name: str) -> dict[str, bytes]:
    """Return the files of an image processor in a folder or repository, by name.

    Raises:
        ConfigError: it does not exist, or has none.
        TokenizerError: a file cannot be read.
    """
    setting, path = "tokenizer.processor", local_path(config, name)
    if path is None:
        path = _from_hub(config, name, setting, PROCESSOR_FILES)
    try:
        files = {entry: path / entry for entry in PROCESSOR_FILES if (path / entry).is_file()}
        if not {*files} & {*PROCESSOR_FILES[:2]}:
            message = f"{name} has no {' or '.join(PROCESSOR_FILES[:2])}; use a folder that `save_pretrained` wrote"
            raise config.fault(setting, message)
        return {entry: read_small_file(file, LARGEST_SETTINGS) for entry, file in files.items()}
    except OSError as error:
        raise TokenizerError(f"{name}: cannot be read: {error.strerror}") from error


@quiet_retries()
def _from_hub(config: PipelineConfig, name: str, setting: str = SETTING, files: Sequence[str] = ()) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", name) or name.endswith(
        (".json", ".model", ".tiktoken")
    ):
        raise config.fault(setting, f"no such file or folder: {name}")
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        folder = huggingface_hub.snapshot_download(name, allow_patterns=[*files] or [TOKENIZER, *SETTINGS])
        if not files and not (Path(folder) / TOKENIZER).is_file():  # a snapshot's folder is named after its commit
            others = [*VOCABULARIES, "*.tiktoken"]
            # large vocabularies of other formats are only downloaded without a tokenizer.json
            folder = huggingface_hub.snapshot_download(name, revision=Path(folder).name, allow_patterns=others)
        return Path(folder)
    except Exception as error:
        if is_gated(error):
            raise config.fault(setting, gated(name)) from error
        if isinstance(error, RepositoryNotFoundError | HFValidationError):
            message = f"{name} is not a local folder, and not found on the hub; {CHECK_NAME}"
            raise config.fault(setting, message) from error
        raise hub_unavailable(name, error) from error


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
        if not isinstance(decoder := config["added_tokens_decoder"], dict):
            raise TokenizerError("added_tokens_decoder is not a JSON object")
        for id, token in decoder.items():
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
    # a default of the class that the vocabulary lacks would become a new token
    fallbacks = {key: token for key, token in defaults.items() if key not in declared and token in vocabulary}
    # flags count: a token of other flags is added again, which changes its flags and keeps its id
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
    """Return the content and flags of a token: two tokens are the same if these are."""
    return token["content"], *(token.get(flag, False) for flag in FLAGS)


def _is_custom(key: str, value: Any) -> bool:
    """Return whether a setting declares a custom token of the model, such as image_token."""
    return key.endswith("_token") and key not in NAMED and isinstance(value, str)


def _values(extra: Any) -> list[Any]:
    if not isinstance(extra, list | dict | None):
        raise TokenizerError(f"extra_special_tokens must be a list or an object, got {str(extra)[:80]}")
    return list(extra.values() if isinstance(extra, dict) else extra or [])


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
        has_ranks = files.vocabulary.endswith(".tiktoken") or is_ranks(files.content)
        base = _from_ranks(files, settings) if has_ranks else _from_model(files, settings, family)
    parsed = parse_json(files.vocabulary, base.content)
    # checked before `tokenizers` loads it: crafted files can end the process
    own_ids = vocabulary(parsed)
    check_work(parsed)
    check_tokenizer(base.content)
    if "type" not in parsed["model"]:  # tokenizers infers it from the model's fields
        inferred = json.loads(load_tokenizer(base.content).to_str())["model"]["type"]
        parsed["model"] = {"type": inferred, **parsed["model"]}
        base = replace(base, content=json.dumps(parsed, ensure_ascii=False).encode())
    defaults = FAMILIES.get(family, {}) | base.named
    tokens = read_special_tokens(settings, special_tokens_map, added_tokens, defaults, parsed["added_tokens"], own_ids)
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
        special: Any = settings.get("added_tokens_decoder") or {}
        try:
            ids = {token["content"] if isinstance(token, dict) else token: int(id) for id, token in special.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise TokenizerError(f"{CONFIG}: added_tokens_decoder must map ids to tokens") from error
        encoding, named = Encoding(pattern, ids), {}
    try:
        return Base(_ranks_json(files.content, encoding.pattern, tuple(encoding.special.items())), named)
    except ValueError as error:
        raise TokenizerError(f"{files.vocabulary}: {error}") from error


def _from_model(files: TokenizerFiles, settings: dict[str, Any], family: str) -> Base:
    if files.settings and family not in SENTENCEPIECE_IDS:
        raise TokenizerError(
            f"the ids of a {settings.get('tokenizer_class') or family} can differ from those of its SentencePiece "
            f"model; save it with a {TOKENIZER} (`save_pretrained` of transformers), or set the path to "
            f"{files.vocabulary} to use the ids of the model"
        )
    # `legacy: false` of transformers: a control token inside a text starts no new word
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
    # T5 counts its sentinels down from the last id
    sentinels = tuple(special_token(f"<extra_id_{number}>") for number in reversed(range(extra)))
    return Base(content, named, sentinels, ("eos",))


_ranks = lru_cache(maxsize=1)(parse_ranks)


@lru_cache(maxsize=4)
def _ranks_json(content: bytes, pattern: str, special: tuple[tuple[str, int], ...]) -> bytes:
    return tiktoken_json(_ranks(content), Encoding(pattern, dict(special)))


@lru_cache(maxsize=4)
def _model_json(content: bytes, prefix_first_only: bool) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    model = parse_sentencepiece(content)
    return sentencepiece_json(model, prefix_first_only), tuple(model.specials.items())


def _family(name: Any) -> str:
    text = str(name or "").lower()
    short = text.removesuffix("fast").removesuffix("tokenizer").replace("_", "")
    return text if text.startswith("pretrained") else short


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
