"""`tokenloom templates`: what it says of each built-in template is what rows show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from support.terminal import run_here
from tokenloom.assets.shown_rows.token_runs import BRACKETS
from tokenloom.cli.templates import BOS, EOS, SAMPLE
from tokenloom.resources.templates.named import DESCRIPTIONS, NAMED

CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"word": "x"}}}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "", "parameters": {}}}
QUESTION, ANSWER = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
WITH: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None, str]] = {
    "system message": ([{"role": "system", "content": "BE BRIEF"}, QUESTION, ANSWER], None, "BE BRIEF"),
    "tools": ([QUESTION, ANSWER], [TOOL], "look_up"),
    "tool calls": ([QUESTION, {**ANSWER, "tool_calls": [CALL]}], None, "look_up"),
    "reasoning": ([QUESTION, {**ANSWER, "reasoning_content": "BECAUSE"}], None, "BECAUSE"),
}
"""Conversations with a feature, and a text that is only in what renders it."""


def listed(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    done = run_here("templates", *arguments, "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["templates"]


def rendered(template: str, messages: Any, tools: Any = None) -> str:
    tokens: Any = {"bos_token": BOS, "eos_token": EOS}
    return render_jinja_template([messages], tools=tools, chat_template=template, **tokens)[0][0]


def test_what_a_template_renders_is_what_transformers_renders(tmp_path: Path) -> None:
    found = listed(tmp_path)
    assert [each["name"] for each in found] == list(NAMED) == list(DESCRIPTIONS)
    for each in found:
        shown = {name for name, (talk, tools, text) in WITH.items() if text in rendered(each["template"], talk, tools)}
        assert (set(each["renders"]), set(each["rejects"])) == (shown, WITH.keys() - shown), each["name"]


def test_the_list_names_every_template_with_its_description(tmp_path: Path) -> None:
    done = run_here("templates", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    printed = " ".join(done.stdout.split())
    assert all(f"{name} {' '.join(text.split())}" in printed for name, text in DESCRIPTIONS.items())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", NAMED)
def test_a_template_is_shown_with_a_conversation_whose_answers_are_in_brackets(tmp_path: Path, name: str) -> None:
    done = run_here("templates", name, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(NAMED[name].rstrip())
    shown = done.stdout.split("\u256d")[1]
    start, end = BRACKETS
    trained = "".join(part.partition(end)[0] for part in shown.split(start)[1:])
    for message in SAMPLE:
        assert message["content"] in shown
        assert (message["content"] in trained) == (message["role"] == "assistant")


def test_a_tokenizer_certifies_the_templates(tmp_path: Path, real_data: Path) -> None:
    (chatml,) = listed(tmp_path, "chatml", "--tokenizer", str(real_data / "tokenizers" / "phi-2"))
    assert any("<|im_end|>, for which the tokenizer has no token" in notice for notice in chatml["notices"])
    (stop,) = (finding for finding in chatml["certificate"] if finding["name"] == "stop")
    assert stop["found"] == "trained, without EOS <|endoftext|>"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chatlm"], "NAME: no built-in chat template 'chatlm'; did you mean chatml?"),
        (["xyzzy"], "the built-in templates are alpaca, chatml, "),
        (["--tokenizer", "nowhere/at/all"], "tokenizer.name_or_path: no such file or folder: nowhere/at/all"),
    ],
)
def test_a_wrong_name_is_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run_here("templates", *arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
