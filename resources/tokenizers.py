"""Finds a tokenizer's files, its special tokens and its chat template, before anything is tokenized."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenloom.config import PipelineConfig
from tokenloom.errors import TokenizerError
from tokenloom.resources.hub import hub_unavailable
from tokenloom.resources.sources import local_path

TOKENIZER, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
SPECIAL_ROLES = ("bos", "eos", "pad", "unk")


@dataclass(frozen=True)
class TokenizerSpec:
    """A tokenizer as far as its files tell: nothing is loaded yet.

    Args:
        files: tokenizer.json and tokenizer_config.json; empty where the tokenizer is still to be trained.
        bos, eos, pad, unk: special tokens, or None.
        control: all control tokens, longest first.
        chat_template: its text, or None.
        prepended: the special token that the tokenizer itself puts before a text, or None.
    """

    files: dict[str, bytes] = field(repr=False)
    bos: str | None
    eos: str | None
    pad: str | None
    unk: str | None
    control: tuple[str, ...]
    chat_template: str | None
    prepended: str | None

    @property
    def adds_bos(self) -> bool:
        """Whether the tokenizer itself puts BOS before a text."""
        return self.bos is not None and self.prepended == self.bos

    def tokens(self) -> dict[str, str]:
        """bos_token, eos_token, pad_token and unk_token, as templates read them; those that exist."""
        found = {f"{role}_token": getattr(self, role) for role in SPECIAL_ROLES}
        return {name: token for name, token in found.items() if token is not None}


def resolve_tokenizer(config: PipelineConfig) -> TokenizerSpec:
    """The tokenizer that the YAML names or trains, with special tokens and chat template from the YAML first.

    Raises:
        ConfigError: the YAML names none, or one that does not exist.
        TokenizerError: its files cannot be used.
    """
    tokenizer = config.tokenizer
    given = tokenizer.special_tokens
    named = {role: token for role in SPECIAL_ROLES if (token := getattr(given, role)) is not None}
    if tokenizer.train is not None:
        own = TokenizerSpec({}, None, None, None, None, (), None, given.bos)
    elif tokenizer.name_or_path is not None:
        own = _read(config, tokenizer.name_or_path)
    else:
        raise config.fault("tokenizer", "tokenizer: set name_or_path, or train: {vocab_size: 8000}")
    template = _chat_template(config) or own.chat_template
    spec = replace(own, chat_template=template, **named)
    if own.files:
        known = _vocabulary(own.files)
        for role, token in [*named.items(), *(("additional", token) for token in given.additional)]:
            if token not in known:
                raise config.fault(
                    f"tokenizer.special_tokens.{role}", f"special_tokens.{role}: the tokenizer has no token {token!r}"
                )
    control = {*own.control, *given.additional, *(token for token in spec.tokens().values())}
    return replace(spec, control=tuple(sorted(control, key=lambda token: (-len(token), token))))


def declared_tokenizer(config: PipelineConfig) -> dict[str, Any]:
    """What the YAML says of special tokens and chat template, before any file is read."""
    return config.tokenizer.model_dump(mode="json", include={"name_or_path", "special_tokens", "chat_template"})


def _chat_template(config: PipelineConfig) -> str | None:
    """The YAML's chat template: the text itself, or the content of the file it names."""
    given = config.tokenizer.chat_template
    if given is None or "{{" in given or "{%" in given:
        return given
    path = local_path(config, given)
    if path is None or not path.is_file():
        raise config.fault("tokenizer.chat_template", f"tokenizer.chat_template: no such file: {given}")
    return path.read_text(encoding="utf-8")


def _read(config: PipelineConfig, name: str) -> TokenizerSpec:
    path = local_path(config, name)
    if path is None:
        path = _from_hub(config, name)
    try:
        return _read_files(config, name, path)
    except OSError as error:
        raise TokenizerError(f"{name}: cannot be read: {error.strerror}") from error


def _read_files(config: PipelineConfig, name: str, path: Path) -> TokenizerSpec:
    if path.is_file():
        if path.suffix != ".json":
            raise config.fault(
                "tokenizer.name_or_path",
                f"tokenizer.name_or_path: {name} is no tokenizer.json or folder that holds one",
            )
        files = {TOKENIZER: path.read_bytes()}
        path = path.parent / "none"
    else:
        files = {entry: (path / entry).read_bytes() for entry in (TOKENIZER, CONFIG) if (path / entry).is_file()}
    if TOKENIZER not in files:
        raise config.fault("tokenizer.name_or_path", f"tokenizer.name_or_path: {name} holds no {TOKENIZER}")
    try:
        parsed, settings = json.loads(files[TOKENIZER]), json.loads(files.get(CONFIG, b"{}"))
        added = parsed["added_tokens"]
        if not isinstance(settings, dict):
            raise TypeError(f"{CONFIG} is no JSON object")
    except (ValueError, KeyError, TypeError) as error:
        raise TokenizerError(f"{name}: not a tokenizer: {error}") from error
    special = {role: _token(settings.get(f"{role}_token")) for role in SPECIAL_ROLES}
    control = tuple(token["content"] for token in added if token["special"])
    template_file = path / TEMPLATE
    template = template_file.read_text(encoding="utf-8") if template_file.is_file() else _own_template(settings)
    prepended = _first_special(parsed.get("post_processor"))
    return TokenizerSpec(files, **special, control=control, chat_template=template, prepended=prepended)


def _token(value: Any) -> str | None:
    return value["content"] if isinstance(value, dict) else value


def _own_template(settings: dict[str, Any]) -> str | None:
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("default")
    return template


def _first_special(processor: Any) -> str | None:
    """The special token that a post-processor puts first, or None."""
    if not processor:
        return None
    if processor["type"] == "Sequence":
        return next((found for inner in processor["processors"] if (found := _first_special(inner))), None)
    if processor["type"] == "TemplateProcessing":
        first = processor["single"][0] if processor["single"] else {}
        return first["SpecialToken"]["id"] if "SpecialToken" in first else None
    return processor["cls"][0] if "cls" in processor else None


def _vocabulary(files: dict[str, bytes]) -> set[str]:
    parsed = json.loads(files[TOKENIZER])
    vocabulary = parsed["model"].get("vocab", {})
    known = set(vocabulary) if isinstance(vocabulary, dict) else {entry[0] for entry in vocabulary}
    return known | {token["content"] for token in parsed["added_tokens"]}


def _from_hub(config: PipelineConfig, name: str) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", name) or name.endswith(".json"):
        raise config.fault("tokenizer.name_or_path", f"tokenizer.name_or_path: no such file or folder: {name}")
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=[TOKENIZER, CONFIG, TEMPLATE]))
    except GatedRepoError as error:
        raise config.fault(
            "tokenizer.name_or_path",
            f"tokenizer.name_or_path: {name} is gated on the hub; set HF_TOKEN to a token that may read it",
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise config.fault(
            "tokenizer.name_or_path",
            f"tokenizer.name_or_path: {name} is no local folder, and not on the hub; "
            "check its spelling, or HF_TOKEN where it is private",
        ) from error
    except Exception as error:
        raise hub_unavailable(name, error) from error


def export_config(spec: TokenizerSpec) -> bytes:
    """tokenizer_config.json in force: the tokenizer's own with the special tokens resolved; loads with
    `transformers.AutoTokenizer.from_pretrained`."""
    settings = json.loads(spec.files.get(CONFIG, b"{}"))
    settings.pop("chat_template", None)
    settings.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    settings.setdefault("clean_up_tokenization_spaces", False)
    return json.dumps({**settings, **spec.tokens()}, indent=2, sort_keys=True, ensure_ascii=False).encode()
