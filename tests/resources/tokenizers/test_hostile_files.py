"""Files next to a YAML that no parser can read: deep or endless JSON, long numbers, devices, other encodings."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tokenloom.assets.prompts.render import declared_tools
from tokenloom.config import PipelineConfig
from tokenloom.errors import TokenloomError
from tokenloom.resources.tables.json_text import read_json_value
from tokenloom.resources.tokenizers.tokenizer_json import FLAGS
from tokenloom.resources.tokenizers.tokenizer_spec import resolve_tokenizer

DEEP = ("[" * 100_000).encode()
DIGITS = f'{{"x": {"9" * 6000}}}'.encode()
HOSTILE = {
    "deep": DEEP,
    "deep objects": b'{"a":' * 100_000,
    "digits": DIGITS,
    "not UTF-8": b'{"a": "\xff"}',
    "empty": b"",
    "a lone surrogate": rb'{"bos_token": "\ud800", "model": {}}',
    "a lone surrogate among pairs": rb'[{"name": "\ud83d\ude00 \\\ude00"}]',
    "a lone surrogate in UTF-8": b'{"bos_token": "\xed\xa0\x80"}',
    "a lone surrogate in UTF-16": '{"bos_token": "\ud800"}'.encode("utf-16", "surrogatepass"),
}


def config_in(folder: Path, text: str) -> PipelineConfig:
    (folder / "x.yaml").write_text(f"dataset: {{name: x.jsonl}}\n{text}\n")
    return PipelineConfig.from_file(folder / "x.yaml")


@pytest.mark.parametrize("content", HOSTILE)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tools.json"])
def test_damaged_json_is_refused_in_one_line(tmp_path: Path, tokenizer_folder: Path, name: str, content: str) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for file in tokenizer_folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / name).write_bytes(HOSTILE[content])
    settings = f"tokenizer: {{name_or_path: {folder}}}\nprompt_template: {{tools: {folder}/tools.json}}"
    config = config_in(tmp_path, settings)
    with pytest.raises(TokenloomError) as raised:
        (declared_tools if name == "tools.json" else resolve_tokenizer)(config)
    assert raised.value.exit_code == 2
    message = str(raised.value)
    assert name in message
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize("text", ["\U0001f600", "\ue000", "\\ud800", "\\\U0001f600"])
def test_json_of_any_characters_is_read(text: str) -> None:
    for escapes in (True, False):
        written = json.dumps([text], ensure_ascii=escapes)
        for given in (written, written.encode(), written.encode("utf-8-sig"), written.encode("utf-16")):
            assert read_json_value(given) == [text]


@pytest.mark.parametrize(
    "model", [{"type": "WordLevel", "vocab": {}, "unk_token": "u"}, {"type": "Unigram", "vocab": []}]
)
def test_an_empty_vocabulary_is_refused_by_the_name_of_the_file(tmp_path: Path, model: dict[str, Any]) -> None:
    added = [{"id": 0, "content": "<s>", "special": True, **dict.fromkeys(FLAGS[:4], False)}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": added, "model": model}))
    with pytest.raises(TokenloomError, match=r"tokenizer.json: .* vocabulary is empty") as raised:
        resolve_tokenizer(config_in(tmp_path, f"tokenizer: {{name_or_path: {tmp_path}}}"))
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("kind", ["device", "fifo", "folder", "zero byte", "loop"])
@pytest.mark.parametrize("setting", ["tokenizer.name_or_path", "tokenizer.chat_template", "prompt_template.tools"])
def test_what_is_not_a_regular_file_is_refused_by_the_name_of_the_setting(
    tmp_path: Path, tokenizer_folder: Path, setting: str, kind: str
) -> None:
    path = tmp_path / "given.json"
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "folder":
        path.mkdir()
    given = '"a\\0b.json"' if kind == "zero byte" else str(path)
    section, _, name = setting.partition(".")
    settings = {"tokenizer": {"name_or_path": str(tokenizer_folder)}, "prompt_template": {}}
    settings[section][name] = given
    text = "\n".join(f"{of}: {{{', '.join(f'{k}: {v}' for k, v in each.items())}}}" for of, each in settings.items())
    with pytest.raises(TokenloomError) as raised:
        (declared_tools if name == "tools" else resolve_tokenizer)(config_in(tmp_path, text))
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)


def test_a_file_larger_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(600 << 20)  # a hole: takes no disk
    with pytest.raises(TokenloomError, match="larger than 512 MiB"):
        resolve_tokenizer(config_in(tmp_path, f"tokenizer: {{name_or_path: {path}}}"))
