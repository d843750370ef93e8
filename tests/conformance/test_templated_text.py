"""Rows that a chat template has written already: control tokens stand once, and what they hold is reported.

The oracle of token ids is transformers' tokenizer with the templated text; that of prompts is TRL's documentation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import PreTrainedTokenizerFast

from support.built_prompts import built, config_of
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.on_the_fly import PromptEngine
from tokenloom.cli.main import main
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.tables.json_text import rows_table

Row = dict[str, Any]
EOS = "</s>"
LLAMA = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
ASKED = [{"role": "user", "content": "How far?"}]


@pytest.fixture(scope="module")
def tokenizer(bos_tokenizer_folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(bos_tokenizer_folder)


def write(path: Path, rows: list[Row]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def settings(tokenizer: PreTrainedTokenizerFast, policy: str = "keep", **prompt: Any) -> dict[str, Any]:
    name = {"name_or_path": str(tokenizer.name_or_path), "chat_template": prompt.pop("chat_template", LLAMA)}
    return {"tokenizer": {**name, "control_tokens_in_content": policy}, "prompt_template": prompt}


def answered(text: str) -> list[Row]:
    return [*ASKED, {"role": "assistant", "content": text}]


CUSTOM = {"template": "{q} = {a}", "label_column": "a"}
JINJA = {"template": "{{ q }} = {{ a }}", "label_column": "a"}
KEPT: dict[str, tuple[dict[str, Any], Row, str]] = {
    "text with BOS and EOS": ({"format_type": "text"}, {"text": "<s>far</s>"}, "<s>far</s>"),
    "text that ends with a line end": ({"format_type": "text"}, {"text": "<s>far</s>\n"}, "<s>far</s>"),
    "text with several EOS": ({"format_type": "text"}, {"text": "far</s></s>"}, "<s>far</s>"),
    "text with EOS inside": ({"format_type": "text"}, {"text": "<s>a</s>b</s>"}, "<s>a</s>b</s>"),
    "text without": ({"format_type": "text"}, {"text": "far"}, "<s>far</s>"),
    "text without added tokens": (
        {"format_type": "text", "add_bos": False, "add_eos": False},
        {"text": "<s><s>far</s></s>"},
        "<s><s>far</s></s>",
    ),
    "completion": ({"format_type": "completion"}, {"prompt": "<s>how ", "completion": "far</s>"}, "<s>how far</s>"),
    "custom": ({"format_type": "custom", **CUSTOM}, {"q": "<s>how", "a": "far</s>"}, "<s>how = far</s>"),
    "jinja": ({"format_type": "jinja", **JINJA}, {"q": "<s>how", "a": "far</s>\n"}, "<s>how = far</s>"),
    "chat": (
        {"format_type": "chat"},
        {"messages": answered("9 km</s>")},
        "<s>[user]How far?</s>[assistant]9 km</s>",
    ),
    "chat whose question ends with EOS": (
        {"format_type": "chat"},
        {"messages": [{"role": "user", "content": "How far?</s>"}, {"role": "assistant", "content": "9 km</s> "}]},
        "<s>[user]How far?</s>[assistant]9 km</s>",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept_control_tokens_stand_once(name: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    prompt, row, expected = KEPT[name]
    config = config_of(write(tmp_path / "rows.jsonl", [row]), **settings(tokenizer, **prompt))
    engine = PromptEngine(config)
    (encoded,) = engine.encode(rows_table([row])).to_pylist()
    ids = tokenizer(expected, add_special_tokens=False).input_ids
    assert tokenizer.decode(encoded["input_ids"]) == tokenizer.decode(ids)
    assert encoded["input_ids"] == ids
    assert encoded["trained"][-1] == (prompt.get("add_eos", True) or prompt["format_type"] == "text")


def test_kept_control_tokens_stand_once_in_pairs(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    row = {"prompt": "How far?", "chosen": "9 km</s>", "rejected": "No</s></s>"}
    config = config_of(write(tmp_path / "rows.jsonl", [row]), **settings(tokenizer, format_type="preference"))
    (encoded,) = PromptEngine(config).encode(rows_table([row])).to_pylist()
    for side, answer in (("chosen", "9 km"), ("rejected", "No")):
        text = f"<s>[user]How far?</s>[assistant]{answer}</s>"
        assert encoded[f"{side}_input_ids"] == tokenizer(text, add_special_tokens=False).input_ids


def notices(path: Path, store: Path, last: str, **sections: Any) -> list[str]:
    """Return what a build reports up to a stage."""
    build = Build(config_of(path, **sections), ArtifactStore(store), ComputeEngine(1))
    return [notice for report in build.run_all(last) for notice in report.notices]


@pytest.mark.parametrize(
    ("policy", "said"), [("split", "are tokenized as plain text"), ("keep", "stay control tokens"), ("reject", None)]
)
def test_a_build_names_control_tokens_with_a_place(
    policy: str, said: str | None, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = [{"text": "plain"}, {"text": "<s>far</s>"}, {"text": "near</s>"}]
    path = write(tmp_path / "rows.jsonl", rows)
    found = notices(path, tmp_path / "store", "tokens", **settings(tokenizer, policy, format_type="text"))
    named = [line for line in found if "control tokens in contents" in line]
    if said is None:
        assert named == []
        return
    (line,) = named
    assert said in line
    assert f"tokenizer.control_tokens_in_content: {policy}" in line
    assert "rows.jsonl:2 (" in line


INSPECTED: dict[str, tuple[Row, str]] = {
    "ChatML": ({"text": "<|im_start|>user\nHi<|im_end|>\n"}, "<|im_start|>, <|im_end|>"),
    "Llama 2": ({"text": "<s>[INST] Hi [/INST] Hello </s>"}, "<s>, [INST], [/INST], </s>"),
    "Llama 3": ({"prompt": "Hi", "completion": "Hello<|eot_id|>"}, "<|eot_id|>"),
    "Gemma": ({"text": "<bos><start_of_turn>user\nHi<end_of_turn>"}, "<bos>, <start_of_turn>, <end_of_turn>"),
    "DeepSeek": ({"text": "<｜User｜>Hi"}, "<｜User｜>"),
    "messages": ({"messages": answered("Far<|im_end|>")}, "<|im_end|>"),
    "HTML": ({"text": "It is <s>far</s> near, a | b, [x] and <b>."}, ""),
}


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", INSPECTED)
def test_inspect_names_rows_that_are_templated(
    name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row, tokens = INSPECTED[name]
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"rows.{form}"
    if form == "jsonl":
        write(path, [row])
    else:
        pq.write_table(pa.Table.from_pylist([row]), path)
    assert main(["inspect", path.name, "--out", "-", "--store", "store"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert ("have control tokens, or marks of a chat template" in printed) == bool(tokens)
    if tokens:
        assert f"in their texts: {tokens}; e.g. " in printed
        assert "tokenizer.control_tokens_in_content: keep" in printed


def test_inspect_names_tokens_that_the_tokenizer_lacks(
    tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rows.jsonl", [{"text": "<|im_start|>user\n<|of_another|>"}])
    assert main(["inspect", "rows.jsonl", "--tokenizer", str(tokenizer_folder), "--out", "-", "--store", "store"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "<|of_another|>: not among the control tokens of" in printed


SPOKEN = "\n\nHuman: Hi\n\nAssistant:"
REPEATED: dict[str, tuple[Row, str | None]] = {
    "text": ({"prompt": "What is 2+2?", "chosen": "What is 2+2? 4", "rejected": "What is 2+2? 5"}, "4"),
    "text with a line end": ({"prompt": "Add 2\n", "chosen": "Add 2\n4", "rejected": "Add 2\n5"}, "4"),
    "only in chosen": ({"prompt": "What is 2+2?", "chosen": "What is 2+2? 4", "rejected": "5"}, None),
    "part of a word": ({"prompt": "2", "chosen": "23", "rejected": "24"}, None),
    "nothing after it": ({"prompt": "What is it?", "chosen": "What is it? ", "rejected": "What is it? 5"}, None),
    "transcripts": (
        {
            "prompt": "\n\nHuman: Hi\n\nAssistant:",
            "chosen": "\n\nHuman: Hi\n\nAssistant: A",
            "rejected": "\n\nHuman: Hi\n\nAssistant: B",
        },
        "A",
    ),
    "messages": (
        {"prompt": ASKED, "chosen": answered("9 km"), "rejected": answered("No")},
        "9 km",
    ),
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_prompt_repeated_in_chosen_and_rejected_is_not_trained(
    name: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    row, answer = REPEATED[name]
    mapping = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
    sections = {**settings(tokenizer, format_type="preference"), "dataset": {"column_mapping": mapping}}
    build = built(write(tmp_path / "rows.jsonl", [row]), tmp_path / "store", "columns", **sections)
    (found,) = build.store.objects.get(build.manifest("columns").chunks[0].output).to_pylist()
    assert [message["content"] for message in found["chosen"]] == [row["chosen"] if answer is None else answer]


COUNTED: dict[str, tuple[dict[str, Any], Row, bool]] = {
    "completion": ({"format_type": "completion"}, {"prompt": "What is it?", "completion": "What is it? Far."}, True),
    "last line": ({"format_type": "completion"}, {"prompt": "It is.\nAnswer:", "completion": "Answer: far"}, True),
    "chat": ({"format_type": "chat"}, {"prompt": "What is it?", "completion": "What is it? Far."}, True),
    "custom": ({"format_type": "custom", **CUSTOM}, {"q": "What is it?", "a": "What is it? Far."}, True),
    "kto": ({"format_type": "kto"}, {"prompt": "What is it?", "completion": "What is it? Far.", "label": True}, True),
    "another start": ({"format_type": "completion"}, {"prompt": "What is it?", "completion": "What is? Far."}, False),
    "a short word": ({"format_type": "completion"}, {"prompt": "Yes", "completion": "Yes, far."}, False),
}


@pytest.mark.parametrize("name", COUNTED)
def test_answers_that_begin_with_their_prompt_are_counted(
    name: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    prompt, row, is_counted = COUNTED[name]
    path = write(tmp_path / "rows.jsonl", [row, {**row, "label": False} if "label" in row else row])
    roles = {} if "template" in prompt else {name: name for name in row}
    given = {**settings(tokenizer, **prompt), "dataset": {"column_mapping": roles}}
    found = notices(path, tmp_path / "store", "columns", **given)
    assert any("2 answers begin with their prompt" in line for line in found) == is_counted


BEGUN = [*ASKED, {"role": "assistant", "content": "It is"}]
STARTED: dict[str, tuple[str, Row, bool]] = {
    "completion": ("chat", {"prompt": BEGUN, "completion": [{"role": "assistant", "content": " far."}]}, False),
    "prompt alone": ("prompt_only", {"prompt": BEGUN}, True),
    "next question": ("chat", {"prompt": BEGUN, "completion": answered("9 km")}, False),
    "conversation": ("chat", {"messages": BEGUN}, False),
}


@pytest.mark.parametrize("name", STARTED)
def test_a_prompt_that_ends_with_the_start_of_the_answer_is_refused(
    name: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    form, row, refused = STARTED[name]
    path = write(tmp_path / "rows.jsonl", [row])
    given = {**settings(tokenizer, format_type=form), "dataset": {"column_mapping": {key: key for key in row}}}
    rejected = refused
    build = Build(config_of(path, **given), ArtifactStore(tmp_path / "store"), ComputeEngine(1))
    try:
        for _ in build.run_all("columns"):
            pass
    except Exception as error:
        assert "started_answer" in str(error)
        assert rejected
    else:
        assert not rejected
