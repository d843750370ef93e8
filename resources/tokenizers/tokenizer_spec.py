"""The resolved tokenizer: what its files declare, overridden by the settings of the YAML."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from importlib import metadata
from typing import Any, Literal, get_type_hints

import msgspec

from tokenloom.config import PipelineConfig
from tokenloom.config.yaml_file import read_small_text
from tokenloom.errors import did_you_mean
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.processors.certificate import Cache, CertifiedProcessor, ImageTokens
from tokenloom.resources.processors.processor import ProcessorError
from tokenloom.resources.sources.resolve import local_path
from tokenloom.resources.templates.named import NAMED
from tokenloom.resources.tokenizers.conversion import (
    CONFIG,
    LARGEST_SETTINGS,
    TEMPLATE,
    TOKENIZER,
    ConvertedTokenizer,
    TokenizerFiles,
    convert,
    find_files,
    processor_files,
    with_more_tokens,
)
from tokenloom.resources.tokenizers.tokenizer_json import first_special

TEMPLATES = (TEMPLATE, "chat_template.json")
VERSION = 1
"""Increase this when what a tokenizer's files are read to declare changes."""

SPECIAL_ROLES = ("bos", "eos", "pad", "unk")
KEPT = ("clean_up_tokenization_spaces", "model_input_names", "model_max_length", "padding_side", "truncation_side")
"""Settings of tokenizer_config.json that are exported. Others are in tokenizer.json already, or name a class, a path or
code."""


_NOT_DECLARED = ("files", "processor", "border")
"""Fields of `TokenizerSpec` that hold more than what the tokenizer's files declare."""

BorderRule = Literal["breaks", "last", "none"]
"""Which white space can end a prompt; `tokenloom.assets.prompts.spans` explains them."""


class ConvertedFiles(Mapping[str, bytes]):
    """Files of a tokenizer whose digests are known; they are converted when one is read.

    Args:
        digests: the hex digest of each file, by name.
        convert: returns the files.
    """

    def __init__(self, digests: Mapping[str, str], convert: Callable[[], Mapping[str, bytes]]):
        self.digests, self._convert = digests, convert

    @cached_property
    def _files(self) -> Mapping[str, bytes]:
        return self._convert()

    def __getitem__(self, name: str) -> bytes:
        return self._files[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.digests)

    def __len__(self) -> int:
        return len(self.digests)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


@dataclass(frozen=True)
class TokenizerSpec:
    """A tokenizer as declared by its files, not loaded yet.

    Args:
        files: tokenizer.json, with every token that other files add, and tokenizer_config.json as exported; empty if
            the tokenizer is still to be trained.
        bos, eos, pad, unk: special tokens, or None.
        control: all control tokens, longest first.
        chat_template: its text, or None.
        prepended: the special token that the tokenizer itself puts before a text, or None.
        others: other named tokens, such as sep_token, which templates can use.
        lacked: tokens that the tokenizer's files lack and the YAML adds.
        processor: what makes tokens of images, or None if rows have none.
        border: which white space can end a prompt, as `border_rule` returns it, or None if it is not known yet.
    """

    files: Mapping[str, bytes] = field(repr=False)
    bos: str | None
    eos: str | None
    pad: str | None
    unk: str | None
    control: tuple[str, ...]
    chat_template: str | None
    prepended: str | None
    others: dict[str, str] = field(default_factory=dict)
    lacked: tuple[str, ...] = ()
    processor: CertifiedProcessor | None = None
    border: BorderRule | None = None

    @property
    def digests(self) -> Mapping[str, str]:
        """The hex digest of each file, by name."""
        if isinstance(self.files, ConvertedFiles):
            return self.files.digests
        return {name: digest_bytes(content) for name, content in self.files.items()}

    @property
    def adds_bos(self) -> bool:
        """Whether the tokenizer itself puts BOS before a text."""
        return self.bos is not None and self.prepended == self.bos

    def images(self, config: PipelineConfig) -> ImageTokens | None:
        """Return what the processor makes of images, or None if there is no processor.

        Raises:
            ConfigError: the processor cannot be used.
        """
        try:
            return self.processor.tokens if self.processor is not None else None
        except ProcessorError as error:
            raise config.fault("tokenizer.processor", str(error)) from error

    def tokens(self) -> dict[str, str]:
        """Return the named tokens that exist, by the name that templates use: bos_token, eos_token, …"""
        tokens = {f"{role}_token": getattr(self, role) for role in SPECIAL_ROLES}
        return {name: token for name, token in tokens.items() if token is not None} | self.others


def resolve_tokenizer(config: PipelineConfig, kept: Cache | None = None) -> TokenizerSpec:
    """Resolve the tokenizer that the YAML names or trains. Its special tokens and chat template take precedence over
    those of the files.

    Args:
        kept: where certificates of processors are kept, and what the files declare, so that an unchanged build
            converts nothing.

    Raises:
        ConfigError: the YAML names no tokenizer, or one that does not exist or whose files cannot be used.
    """
    tokenizer = config.tokenizer
    given = tokenizer.special_tokens
    named: dict[str, Any] = {role: token for role in SPECIAL_ROLES if (token := getattr(given, role)) is not None}
    if tokenizer.train is not None:
        own = TokenizerSpec({}, None, None, None, None, (), None, given.bos)
        special = len({*named.values(), *given.additional})
        if tokenizer.train.vocab_size < 256 + special:
            raise config.fault(
                "tokenizer.train.vocab_size", f"256 bytes and {special} special tokens need at least {256 + special}"
            )
    elif tokenizer.name_or_path is not None:
        own = _declared(config, find_files(config, tokenizer.name_or_path), named, kept)
    else:
        raise config.fault("tokenizer", "set name_or_path, or train: {vocab_size: 8000}")
    spec = replace(own, chat_template=_chat_template(config) or own.chat_template, **named)
    control = {*own.control, *given.additional, *(token for token in spec.tokens().values())}
    spec = replace(spec, control=tuple(sorted(control, key=lambda token: (-len(token), token))))
    return spec if tokenizer.processor is None else _with_processor(config, spec, tokenizer.processor, kept)


def _declared(
    config: PipelineConfig, files: TokenizerFiles, named: Mapping[str, str], kept: Cache | None
) -> TokenizerSpec:
    """Return what a tokenizer's files declare, with the tokens that the YAML adds; a ConfigError if they cannot be
    used, or have no token that it names (`named`, by role)."""
    read = {files.vocabulary: files.content, **files.settings}
    added = config.tokenizer.special_tokens.additional
    depends = {
        "files": digest_json([files.vocabulary, {name: digest_bytes(content) for name, content in read.items()}]),
        "tokens": digest_json([sorted(named.items()), list(added)]),
        **{name: metadata.version(name) for name in ("tokenloom", "tokenizers")},
    }
    # at most once, and not at all if the digests of the files are enough
    convert_now = cache(lambda: _converted(config, files, named))
    if kept is None:
        return convert_now()

    def declared() -> str:
        spec = convert_now()
        values = {name: value for name, value in asdict(spec).items() if name not in _NOT_DECLARED}
        return json.dumps({"digests": spec.digests, **values})

    try:
        recalled = msgspec.json.decode(kept.recalled(TOKENIZER, VERSION, depends, declared), type=_recalled_type())
    except msgspec.DecodeError:
        return convert_now()
    values = msgspec.structs.asdict(recalled)
    return TokenizerSpec(ConvertedFiles(values.pop("digests"), lambda: convert_now().files), **values)


@cache
def _recalled_type() -> type[msgspec.Struct]:
    """Return the type of what the store keeps of a tokenizer: the digests of its files, and what they declare."""
    declared = [(name, kind) for name, kind in get_type_hints(TokenizerSpec).items() if name not in _NOT_DECLARED]
    return msgspec.defstruct("Kept", [("digests", dict[str, str]), *declared], forbid_unknown_fields=True)


def _converted(config: PipelineConfig, files: TokenizerFiles, named: Mapping[str, str]) -> TokenizerSpec:
    converted = with_more_tokens(convert(config, files), config.tokenizer.special_tokens.additional)
    for role, token in named.items():
        if token not in converted.vocabulary:
            message = f"the tokenizer has no token {token!r}; to add it, list it in special_tokens.additional"
            raise config.fault(f"tokenizer.special_tokens.{role}", message)
    return _spec(converted)


def _with_processor(config: PipelineConfig, spec: TokenizerSpec, name: str, kept: Cache | None) -> TokenizerSpec:
    """Add the processor, whose chat template goes before the tokenizer's own."""
    own = processor_files(config, name)
    template = _chat_template(config) or _template_of(own) or spec.chat_template
    files = {name: content for name, content in own.items() if name not in TEMPLATES}
    files |= {TOKENIZER: spec.files[TOKENIZER], CONFIG: export_config(spec)}
    return replace(spec, chat_template=template, processor=CertifiedProcessor(files, kept))


def _template_of(files: Mapping[str, bytes]) -> str | None:
    """Return the chat template among a processor's files, or None."""
    if TEMPLATE in files:
        return files[TEMPLATE].decode(errors="replace")
    for name, field_name in ((TEMPLATES[1], "chat_template"), ("processor_config.json", "chat_template")):
        with suppress(ValueError):
            content = json.loads(files.get(name, b"{}"))
            if isinstance(content, dict) and isinstance(content.get(field_name), str):
                return content[field_name]
    return None


def _spec(converted: ConvertedTokenizer) -> TokenizerSpec:
    named, settings = converted.special.named, converted.config
    exportable = {key: settings[key] for key in KEPT if settings.get(key) is not None}
    if converted.special.extra:
        exportable["additional_special_tokens"] = converted.special.extra
    roles: dict[str, Any] = {role: named.get(f"{role}_token") for role in SPECIAL_ROLES}
    special = [token["content"] for token in converted.parsed["added_tokens"] if token.get("special")]
    types = ["token_type_ids"] if converted.parsed["model"].get("type") == "WordPiece" else []
    exported = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", *types, "attention_mask"],
        **exportable,
        **named,
    }
    return TokenizerSpec(
        files={TOKENIZER: converted.content, CONFIG: json.dumps(exported, sort_keys=True, ensure_ascii=False).encode()},
        **roles,
        control=tuple(token for token in (*special, *converted.special.extra) if token),
        chat_template=converted.chat_template,
        prepended=first_special(converted.parsed.get("post_processor")),
        others={key: token for key, token in named.items() if key.removesuffix("_token") not in SPECIAL_ROLES},
        lacked=converted.lacked,
    )


def declared_tokenizer(config: PipelineConfig) -> dict[str, Any]:
    """Return the YAML's name, special tokens and chat template by dotted setting, without reading any file."""
    names = {"name_or_path", "special_tokens", "chat_template"}
    settings = config.tokenizer.model_dump(mode="json", include=names)
    return {f"tokenizer.{name}": value for name, value in settings.items()}


def _chat_template(config: PipelineConfig) -> str | None:
    given = config.tokenizer.chat_template
    if given is None or "{{" in given or "{%" in given:
        return given
    path = local_path(config, given)
    if path is None or not path.is_file():
        if given in NAMED:
            return NAMED[given]
        names = f"the built-in templates are {', '.join(NAMED)}"
        raise config.fault(
            "tokenizer.chat_template", f"no such file: {given}{did_you_mean(given, NAMED) or f'; {names}'}"
        )
    try:
        return read_small_text(path, LARGEST_SETTINGS)
    except OSError as error:
        raise config.fault("tokenizer.chat_template", f"{given} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise config.fault("tokenizer.chat_template", f"{given} is not UTF-8 text") from error


def export_config(spec: TokenizerSpec) -> bytes:
    """Return tokenizer_config.json with the resolved special tokens. With it, `AutoTokenizer.from_pretrained` of
    transformers loads tokenizer.json unchanged."""
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings |= {"model_input_names": ["input_ids", "attention_mask"], **json.loads(spec.files.get(CONFIG, b"{}"))}
    return json.dumps({**settings, **spec.tokens()}, indent=2, sort_keys=True, ensure_ascii=False).encode()
