"""An answer that the prompt starts is one turn: prompt and whole text are those of transformers'
`continue_final_message`, and what comes after the prompt is trained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trl
from transformers import PreTrainedTokenizerFast

from support.columns_stage import as_json, config_of
from support.rendered_prompts import trained_parts
from support.soak import sweep
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import ColumnMapping
from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.tokenizers import resolve_tokenizer

Row = dict[str, Any]
OWN = Path(__file__).parents[2] / "support" / "chat_templates"
SHIPPED = Path(trl.__file__).parent / "chat_templates"
ONLY_PARTS = ("idefics3", "llava_next", "smolvlm")
"""Templates that omit contents of text."""
ALWAYS = ("qwen3", "qwen3_8_training", "llama3_1", "gemma3", "deepseekv3", "glm4moe", "gptoss", "lfm2_v2", "phi3")
TEMPLATES = {path.stem: path for folder in (OWN, SHIPPED) for path in sorted(folder.glob("*.jinja"))}
NAMES = [
    pytest.param(name, marks=[] if name in ALWAYS or path.parent == OWN else [sweep])
    for name, path in TEMPLATES.items()
    if not name.startswith(ONLY_PARTS)
]
TODAY = re.compile(r"strftime_now\([^)]*\)")
HI = {"role": "user", "content": "hi"}
STARTS: dict[str, tuple[str, str]] = {
    "a word": ("It is", " far."),
    "a space": ("It is ", "far."),
    "a line": ("Well,\n\n", "it is far."),
    "JSON": ('{"name": "', 'Ann"}'),
    "code": ("```python\n", "print(1)\n```"),
    "a letter": ("I", "t is far."),
    "two scripts": ("Это ", "далеко 🌊."),
}
"""The start of an answer, and how it goes on."""


def said(content: str) -> Row:
    return {"role": "assistant", "content": content}


def render(rows: list[Row], form: str, tokenizer: Path, template: str, **prompt: Any) -> ChunkOutput:
    settings = {"name_or_path": str(tokenizer), "chat_template": template}
    config = config_of(tokenizer=settings, prompt_template={"format_type": prompt.pop("format_type", "chat"), **prompt})
    table = as_json(*rows)
    table = table.append_column(ROW, pa.array(range(len(rows)), pa.int32()))
    mapping = ColumnMapping(form, {name: name for name in rows[0]})
    canonical = to_canonical(table, mapping)
    assert not canonical.rejects.num_rows, canonical.rejects.to_pylist()
    return renderer(config, mapping.to_json(), resolve_tokenizer(config))(canonical.table)


@pytest.mark.parametrize("name", NAMES)
def test_the_start_is_not_trained_and_the_rest_is(name: str, tokenizer_folder: Path) -> None:
    template = TODAY.sub("'2026-11-28'", TEMPLATES[name].read_text(encoding="utf-8"))
    reference = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
    reference.chat_template = template
    rows = [{"prompt": [HI, said(start)], "completion": [said(rest)]} for start, rest in STARTS.values()]
    out = render(rows, "dialogue", tokenizer_folder, template)
    texts = dict(zip(out.table[ROW].to_pylist(), out.table.to_pylist(), strict=True))
    codes = dict(zip(out.rejects[ROW].to_pylist(), out.rejects["code"].to_pylist(), strict=True))
    faults = []
    for number, (case, (start, rest)) in enumerate(STARTS.items()):
        whole = reference.apply_chat_template([HI, said(start + rest)], tokenize=False)
        given = reference.apply_chat_template([HI, said(start)], tokenize=False, continue_final_message=True)
        row = texts.get(number)
        trained = [] if row is None else trained_parts(row["text"], row["spans"])
        if row is None:
            faults.append(f"{case}: {codes[number]}")
        elif not row["text"].startswith(whole):
            faults.append(f"{case}: {row['text']!r}, not {whole!r}")
        elif len(trained) != 1 or (start + rest).removeprefix(start.rstrip()).lstrip() not in trained[0]:
            faults.append(f"{case}: {trained}")
        elif start.strip() in trained[0] or not row["text"][len(given) :].lstrip().startswith(trained[0].lstrip()):
            faults.append(f"{case}: {trained} after {given!r}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("form", ["preference", "kto"])
def test_pairs_and_labelled_answers_go_on(form: str, tokenizer_folder: Path) -> None:
    template = TEMPLATES["qwen3"].read_text(encoding="utf-8")
    answers = {
        "preference": {"chosen": [said(" far.")], "rejected": [said(" near.")]},
        "kto": {"completion": [said(" far.")], "label": False},
    }[form]
    out = render([{"prompt": [HI, said("It is")], **answers}], form, tokenizer_folder, template, format_type=form)
    (row,) = out.table.to_pylist()
    sides = ("chosen_", "rejected_") if form == "preference" else ("",)
    found = [trained_parts(row[f"{side}text"], row[f"{side}spans"]) for side in sides]
    assert found == [[" far.<|im_end|>"], [" near.<|im_end|>"]][: len(sides)]


def test_calls_after_the_start_are_trained(tokenizer_folder: Path) -> None:
    template = TEMPLATES["hermes"].read_text(encoding="utf-8")
    calls = [{"function": {"name": "look", "arguments": {"q": 1}}}]
    rows = [{"prompt": [HI, said("Let me")], "completion": [{**said(" look."), "tool_calls": calls}]}]
    out = render(rows, "dialogue", tokenizer_folder, template)
    (row,) = out.table.to_pylist()
    (trained,) = trained_parts(row["text"], row["spans"])
    assert trained == row["text"].partition("Let me")[2].rstrip() and "look" in trained and "<tool_call>" in trained


def test_all_of_the_text_is_trained_if_the_yaml_says_so(tokenizer_folder: Path) -> None:
    template = TEMPLATES["hermes"].read_text(encoding="utf-8")
    rows = [{"prompt": [HI, said("It is")], "completion": [said(" far.")]}]
    out = render(rows, "dialogue", tokenizer_folder, template, train_on="all")
    (row,) = out.table.to_pylist()
    assert "".join(trained_parts(row["text"], row["spans"])).strip() == row["text"].strip()


def test_a_thought_that_the_prompt_opens_is_trained_from_there(tokenizer_folder: Path) -> None:
    template = TEMPLATES["qwen3"].read_text(encoding="utf-8")
    rows = [{"prompt": [HI, said("<think>\nHm")], "completion": [said(", far.\n</think>\n\nFar.")]}]
    out = render(rows, "dialogue", tokenizer_folder, template)
    (row,) = out.table.to_pylist()
    assert trained_parts(row["text"], row["spans"]) == [", far.\n</think>\n\nFar.<|im_end|>"]
