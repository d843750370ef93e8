"""Finds the files of the tokenizer that a YAML names: a file, a folder, or a repository on the hub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenloom.config import PipelineConfig
from tokenloom.config.yaml_file import read_small_file
from tokenloom.errors import TokenizerError
from tokenloom.resources.processors.loading import PROCESSOR_FILES
from tokenloom.resources.sources.hub import CHECK_NAME, gated, hub_unavailable, is_gated, quiet_retries
from tokenloom.resources.sources.resolve import local_path
from tokenloom.resources.tokenizers.formats import is_ranks

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
        found = {entry: path / entry for entry in PROCESSOR_FILES if (path / entry).is_file()}
        if not {*found} & {*PROCESSOR_FILES[:2]}:
            message = f"{name} has no {' or '.join(PROCESSOR_FILES[:2])}; use a folder that `save_pretrained` wrote"
            raise config.fault(setting, message)
        return {entry: read_small_file(file, LARGEST_SETTINGS) for entry, file in found.items()}
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
            folder = huggingface_hub.snapshot_download(name, revision=Path(folder).name, allow_patterns=others)
        return Path(folder)
    except Exception as error:
        if is_gated(error):
            raise config.fault(setting, gated(name)) from error
        if isinstance(error, RepositoryNotFoundError | HFValidationError):
            message = f"{name} is not a local folder, and not found on the hub; {CHECK_NAME}"
            raise config.fault(setting, message) from error
        raise hub_unavailable(name, error) from error
