"""The tokenizer in force: what its files tell, with what the YAML says first."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from tokenloom.config import PipelineConfig
from tokenloom.resources.sources.resolve import local_path
from tokenloom.resources.tokenizers.conversion import ConvertedTokenizer, convert
from tokenloom.resources.tokenizers.tokenizer_files import CONFIG, TOKENIZER, find_files
from tokenloom.resources.tokenizers.tokenizer_json import first_special

SPECIAL_ROLES = ("bos", "eos", "pad", "unk")
KEPT = ("clean_up_tokenization_spaces", "model_input_names", "model_max_length", "padding_side", "truncation_side")
"""Settings of tokenizer_config.json that are exported; what stands in tokenizer.json is not said twice, and no other
class, path or code is named."""


@dataclass(frozen=True)
class TokenizerSpec:
    """A tokenizer as far as its files tell: nothing is loaded yet.

    Args:
        files: tokenizer.json, with every token that further files add, and tokenizer_config.json as it is exported;
            empty where the tokenizer is still to be trained.
        bos, eos, pad, unk: special tokens, or None.
        control: all control tokens, longest first.
        chat_template: its text, or None.
        prepended: the special token that the tokenizer itself puts before a text, or None.
        others: further named tokens, such as sep_token, which templates may read.
    """

    files: dict[str, bytes] = field(repr=False)
    bos: str | None
    eos: str | None
    pad: str | None
    unk: str | None
    control: tuple[str, ...]
    chat_template: str | None
    prepended: str | None
    others: dict[str, str] = field(default_factory=dict)

    @property
    def adds_bos(self) -> bool:
        """Whether the tokenizer itself puts BOS before a text."""
        return self.bos is not None and self.prepended == self.bos

    def tokens(self) -> dict[str, str]:
        """bos_token, eos_token, pad_token and unk_token, as templates read them, and others; those that exist."""
        found = {f"{role}_token": getattr(self, role) for role in SPECIAL_ROLES}
        return {name: token for name, token in found.items() if token is not None} | self.others


def resolve_tokenizer(config: PipelineConfig) -> TokenizerSpec:
    """The tokenizer that the YAML names or trains, with special tokens and chat template from the YAML first.

    Raises:
        ConfigError: the YAML names none, or one that does not exist, or whose files cannot be used.
    """
    tokenizer = config.tokenizer
    given = tokenizer.special_tokens
    named = {role: token for role in SPECIAL_ROLES if (token := getattr(given, role)) is not None}
    if tokenizer.train is not None:
        own = TokenizerSpec({}, None, None, None, None, (), None, given.bos)
        special = len({*named.values(), *given.additional})
        if tokenizer.train.vocab_size < 256 + special:
            raise config.fault(
                "tokenizer.train.vocab_size",
                f"tokenizer.train.vocab_size: 256 bytes and {special} special tokens need at least {256 + special}",
            )
    elif tokenizer.name_or_path is not None:
        converted = convert(config, find_files(config, tokenizer.name_or_path))
        own = _spec(converted)
        for role, token in [*named.items(), *(("additional", token) for token in given.additional)]:
            if token not in converted.vocabulary:
                raise config.fault(
                    f"tokenizer.special_tokens.{role}", f"special_tokens.{role}: the tokenizer has no token {token!r}"
                )
    else:
        raise config.fault("tokenizer", "tokenizer: set name_or_path, or train: {vocab_size: 8000}")
    spec = replace(own, chat_template=_chat_template(config) or own.chat_template, **named)
    control = {*own.control, *given.additional, *(token for token in spec.tokens().values())}
    return replace(spec, control=tuple(sorted(control, key=lambda token: (-len(token), token))))


def _spec(converted: ConvertedTokenizer) -> TokenizerSpec:
    named, settings = converted.special.named, converted.config
    kept = {key: settings[key] for key in KEPT if settings.get(key) is not None}
    if converted.special.extra:
        kept["additional_special_tokens"] = converted.special.extra
    special = [token["content"] for token in converted.parsed["added_tokens"] if token.get("special")]
    types = ["token_type_ids"] if converted.parsed["model"].get("type") == "WordPiece" else []
    made = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", *types, "attention_mask"],
        **kept,
        **named,
    }
    return TokenizerSpec(
        files={TOKENIZER: converted.content, CONFIG: json.dumps(made, sort_keys=True, ensure_ascii=False).encode()},
        **{role: named.get(f"{role}_token") for role in SPECIAL_ROLES},
        control=tuple(token for token in (*special, *converted.special.extra) if token),
        chat_template=converted.chat_template,
        prepended=first_special(converted.parsed.get("post_processor")),
        others={key: token for key, token in named.items() if key.removesuffix("_token") not in SPECIAL_ROLES},
    )


def declared_tokenizer(config: PipelineConfig) -> dict[str, Any]:
    """What the YAML says of special tokens and chat template, before any file is read."""
    names = {"name_or_path", "special_tokens", "chat_template"}
    found = config.tokenizer.model_dump(mode="json", include=names)
    return {f"tokenizer.{name}": value for name, value in found.items()}


def _chat_template(config: PipelineConfig) -> str | None:
    """The YAML's chat template: the text itself, or the content of the file it names."""
    given = config.tokenizer.chat_template
    if given is None or "{{" in given or "{%" in given:
        return given
    path = local_path(config, given)
    if path is None or not path.is_file():
        raise config.fault("tokenizer.chat_template", f"tokenizer.chat_template: no such file: {given}")
    return path.read_text(encoding="utf-8")


def export_config(spec: TokenizerSpec) -> bytes:
    """tokenizer_config.json in force, with the special tokens resolved; `transformers.AutoTokenizer.from_pretrained`
    takes tokenizer.json beside it as it stands."""
    made = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    made |= {"model_input_names": ["input_ids", "attention_mask"], **json.loads(spec.files.get(CONFIG, b"{}"))}
    return json.dumps({**made, **spec.tokens()}, indent=2, sort_keys=True, ensure_ascii=False).encode()
