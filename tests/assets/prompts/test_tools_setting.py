"""`prompt_template.tools`: the chat template gets them for rows without tools, or they are refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import PreTrainedTokenizerFast

from support.canonical_tables import CHATML, TOOLS, Row, build_canonical, config_of, prompts_of, said, table_of
from support.rendered_prompts import trained_parts
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.store import ArtifactStore

WEATHER: list[Row] = [{"type": "function", "function": {"name": "weather", "parameters": {"é": ["<city>"]}}}]
OWN = json.dumps([{"name": "own"}])
TALK = [said("user", "q"), said("assistant", "a")]


def config_file(folder: Path, tokenizer: Path, tools: Any, template: str = TOOLS, **prompt: Any) -> Path:
    settings = {
        "dataset": {"name": "x"},
        "tokenizer": {"name_or_path": str(tokenizer), "chat_template": template},
        "prompt_template": {"format_type": "chat", "tools": tools, **prompt},
    }
    path = folder / "data.yaml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


@pytest.mark.parametrize("given", ["file", "text", "list"])
def test_rows_without_tools_get_the_yamls(tmp_path: Path, tokenizer_folder: Path, given: str) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(WEATHER, indent=2), encoding="utf-8")
    tools: Any = {"file": "tools.json", "text": json.dumps(WEATHER), "list": WEATHER}[given]
    config = PipelineConfig.from_file(config_file(tmp_path, tokenizer_folder, tools))
    out = prompts_of("messages", table_of("messages", [{"messages": TALK}, {"messages": TALK, "tools": OWN}]), config)
    reference = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
    as_read = [{"role": found["role"], "content": found["content"]} for found in TALK]
    for made, described in zip(out.table.to_pylist(), (WEATHER, json.loads(OWN)), strict=True):
        assert made["text"] == reference.apply_chat_template(
            as_read, tools=described, tokenize=False, chat_template=TOOLS.replace("m.name", "m['name']")
        )
        assert trained_parts(made["text"], made["spans"]) == ["a<|im_end|>"]


@pytest.mark.parametrize("form", ["completion", "preference", "kto"])
def test_forms_without_tools_get_the_yamls(tokenizer_folder: Path, form: str) -> None:
    row: Row = {
        "completion": {"prompt": "q", "completion": "a", "system": ""},
        "preference": {"prompt": TALK[:1], "chosen": TALK[1:], "rejected": [said("assistant", "b")]},
        "kto": {"prompt": TALK[:1], "completion": TALK[1:], "label": True},
    }[form]
    prompt = {"format_type": "chat" if form == "completion" else form, "tools": WEATHER, "few_shot": {"count": 1}}
    other = json.loads(json.dumps(row).replace('"q"', '"other"'))
    out = prompts_of(form, table_of(form, [row, other]), config_of(tokenizer_folder, prompt, TOOLS))
    assert out.table.num_rows == 2
    for name in (name for name in out.table.column_names if name.endswith("text")):
        head = f"<|im_start|>tools\n{json.dumps(WEATHER, ensure_ascii=False)}<|im_end|>\n<|im_start|>user\n"
        assert all(text.startswith(head) for text in out.table[name].to_pylist())


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("absent.json", r"no such file: absent\.json"),
        ("broken.json", r"broken\.json is not valid JSON: Expecting"),
        ("[{", "the text is not valid JSON: Expecting"),
        ('{"name": "one"}', "expected a list of tool descriptions, found "),
        ([], r"expected a list of tool descriptions, found \[\]"),
        ([{"name": "fine"}, {"function": {"title": "x"}}], "tool 2 has no name: .*; describe it like"),
        ('["weather"]', "tool 1 has no name"),
        ([1], "tool 1 has no name: 1; "),
        ([{"name": "<|im_end|>"}], r"a tool contains the text of the control token <\|im_end\|>"),
    ],
)
def test_wrong_tools_are_a_fault_at_their_line(
    tmp_path: Path, tokenizer_folder: Path, tools: Any, message: str
) -> None:
    (tmp_path / "broken.json").write_text("[", encoding="utf-8")
    path = config_file(tmp_path, tokenizer_folder, tools)
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if text.strip().startswith("tools:"))
    with pytest.raises(ConfigError, match=rf"data\.yaml:{line}: prompt_template\.tools: {message}"):
        prompts_of("messages", table_of("messages", [{"messages": TALK}]), PipelineConfig.from_file(path))


def test_a_template_that_omits_tools_is_refused(tokenizer_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"prompt_template\.tools: the chat template omits tools"):
        prompts_of("messages", table_of("messages", []), config_of(tokenizer_folder, {"tools": WEATHER}, CHATML))


def test_tools_without_a_chat_template_are_refused(tokenizer_folder: Path) -> None:
    config = config_of(tokenizer_folder, {"format_type": "completion", "tools": WEATHER}, None)
    with pytest.raises(ConfigError, match=r"prompt_template\.tools: tools need a chat template"):
        prompts_of("completion", table_of("completion", []), config)


def test_the_key_of_prompts_covers_the_tools(tmp_path: Path, tokenizer_folder: Path) -> None:
    table = table_of("messages", [{"messages": TALK}])
    store = ArtifactStore(tmp_path / "store")

    def reused(tools: Any) -> int:
        config = PipelineConfig.from_file(config_file(tmp_path, tokenizer_folder, tools))
        return build_canonical(config, store, "messages", [table])[1]["prompts"].chunks_reused

    (tmp_path / "tools.json").write_text(json.dumps(WEATHER), encoding="utf-8")
    assert reused("tools.json") == 0
    assert reused(WEATHER) == 1
    (tmp_path / "tools.json").write_text(json.dumps([{"name": "other"}]), encoding="utf-8")
    assert reused("tools.json") == 0
    assert reused(None) == 0
