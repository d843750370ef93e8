"""Jinja templates that people write: text as in plain jinja2, trained parts as in a twin that is marked by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import _compile_jinja_template

from support.jinja_templates import MARKED, MIXED, TEMPLATES
from support.rendered_prompts import Render, Row, assert_partition, renders, trained_parts
from support.soak import sweep
from tokenloom.assets.building.on_the_fly import PromptEngine
from tokenloom.assets.columns.mapping import resolve
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError

EOS = "</s>"
MADE_UP = [
    ("What is 2 + 2?", "", "It is 4.\n#### 4"),
    ("name a river", "Rivers of  Europe are long.\nSome flow north.", " The Elbe "),
    ("Übersetze: 你好", "é\u2028x", "hello\n\nworld"),
    ("a" * 80 + " b?", "<|im_start|>", "x"),
    ("{{ q }} {% if %}", "[[1]]", "{{ answer }}"),
    ("Say </s> now", "", "It </s> ends"),
]


def real_rows(folder: Path) -> list[tuple[str, str, str]]:
    """200 rows of Alpaca, GSM8K and XQuAD."""
    alpaca = json.loads((folder / "instruct/alpaca_data.json").read_text(encoding="utf-8"))
    gsm8k = (folder / "math/gsm8k_train.jsonl").read_text(encoding="utf-8").splitlines()[:60]
    squad = json.loads((folder / "multilingual/xquad.ar.json").read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in squad for paragraph in article["paragraphs"]]
    asked = [(qa["question"], one["context"], qa["answers"][0]["text"]) for one in paragraphs for qa in one["qas"]]
    rows = [(row["instruction"], row["input"], row["output"]) for row in alpaca if row["output"].strip()][:80]
    return rows + [(row["question"], "", row["answer"]) for row in map(json.loads, gsm8k)] + asked[:60]


def rows_of(texts: list[tuple[str, str, str]]) -> list[Row]:
    return [
        {
            "q": q,
            "ctx": ctx,
            "answer": answer,
            "n": number,
            "tags": (q.replace(EOS, "").split() or ["x"])[:4],
            "meta": {"source": f"s{number % 3}", "kind": ("math", "other")[number % 2]},
        }
        for number, (q, ctx, answer) in enumerate(texts)
    ]


ROWS = rows_of(MADE_UP)


@pytest.fixture(scope="module", params=["made up", pytest.param("real", marks=sweep)])
def rows(request: pytest.FixtureRequest) -> list[Row]:
    return ROWS if request.param == "made up" else rows_of(real_rows(request.getfixturevalue("real_data")))


@pytest.fixture(scope="module")
def render(tokenizer_folder: Path) -> Render:
    return renders(tokenizer_folder)


def plain(template: str, row: Row) -> str:
    """The text that Jinja makes in the environment of `transformers`."""
    return _compile_jinja_template(template).render(**row, eos_token=EOS, bos_token="<s>")


def expected(template: str, twin: str, row: Row, eos: str = EOS) -> tuple[str, list[str]]:
    """The text, with EOS after the last trained part, and the trained parts.

    Without generation marks, trained parts begin with the white space before them, as the tokenizer joins it to them.
    """
    text, marked = plain(template, row), plain(twin, row)
    parts = re.split("⟦(.*?)⟧", marked, flags=re.DOTALL)
    assert "".join(parts) == text, "the twin writes another text"
    for index in range(1, len(parts), 2) if "endgeneration" not in template else ():
        if parts[index]:
            size = moved_space(parts[index - 1])
            parts[index] = parts[index - 1][len(parts[index - 1]) - size :] + parts[index]
            parts[index - 1] = parts[index - 1][: len(parts[index - 1]) - size]
    last = max(index for index in range(1, len(parts), 2) if parts[index])
    parts[last] += eos
    trained = "\0".join(f"\1{part}\2" if index % 2 else part for index, part in enumerate(parts) if part)
    runs = re.findall("\1(.*?)\2", trained.replace("\2\0\1", ""), flags=re.DOTALL)
    return "".join(parts), runs


def moved_space(before: str) -> int:
    """How much white space before an answer a byte-level tokenizer that cuts words as GPT-2's does joins to it."""
    run, blank = (len(before) - len(before.rstrip(members)) for members in (" \t\v\f\r\n", " \t\v\f"))
    return 1 if run > max(blank, 1) else blank


def check(render: Render, rows: list[Row], template: str, twin: str, prompt: Row) -> None:
    out = render(rows, {"format_type": "jinja", "template": template, **prompt})
    assert out.rejects.to_pylist() == []
    for row, made in zip(rows, out.table.to_pylist(), strict=True):
        text, trained = expected(template, twin, row)
        assert made["text"] == text
        assert trained_parts(made["text"], made["spans"]) == trained
        assert_partition(made["text"], made["spans"])


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_depends_on_the_label_is_trained(render: Render, rows: list[Row], name: str) -> None:
    check(render, rows, *TEMPLATES[name], {"label_column": "answer"})


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize("label", [{}, {"label_column": "answer"}])
def test_generation_marks_decide(render: Render, rows: list[Row], name: str, label: Row) -> None:
    if not label or "answer" in MARKED[name][0]:
        check(render, rows, *MARKED[name], label)


@pytest.mark.parametrize("prompt", [{"train_on": ["answer"]}, {"train_on": ["answer"], "label_column": "n"}])
def test_train_on_lists_columns(render: Render, rows: list[Row], prompt: Row) -> None:
    n = "⟦{{ n + 1 }}⟧" if "label_column" in prompt else "{{ n + 1 }}"
    template = "{{ q|upper }} {{ n + 1 }} {{ answer|upper }}."
    check(render, rows, template, f"{{{{ q|upper }}}} {n} ⟦{{{{ answer|upper }}}}⟧.", prompt)


def test_a_mix_of_listed_columns_is_trained(render: Render, rows: list[Row]) -> None:
    check(
        render,
        rows,
        "{{ ctx }}> {{ (q ~ answer)|upper }}",
        "{{ ctx }}> ⟦{{ (q ~ answer)|upper }}⟧",
        {"train_on": ["q", "answer"]},
    )


@pytest.mark.parametrize("name", MIXED)
def test_one_expression_with_label_and_other_columns_is_refused(tmp_path: Path, name: str) -> None:
    label = "n" if name == "index" else "answer"
    body = "".join(f"    {line}\n" for line in ("Ask: {{ q }}", *MIXED[name].split("\n"), f"{{{{ {label} }}}}"))
    path = tmp_path / "data.yaml"
    path.write_text(
        f"dataset: {{name: x}}\nprompt_template:\n  format_type: jinja\n  label_column: {label}\n  template: |\n{body}"
    )
    columns = [{"column": column, "type": "string"} for column in ("q", "answer", "n", "tags")]
    with pytest.raises(ConfigError, match=r"one expression mixes .* and .*; write it as two output nodes") as raised:
        resolve(PipelineConfig.from_file(path), columns)
    places = [fault.place for fault in raised.value.faults]
    assert places == [f"{path}:{6 + len(MIXED[name].splitlines())}" if name != "macro" else f"{path}:7"]


def test_a_row_in_which_nothing_is_trained_is_rejected(render: Render) -> None:
    template = "{{ q|upper }} {% if n %}{{ answer }}{% endif %}"
    out = render(ROWS, {"format_type": "jinja", "template": template, "label_column": "answer"})
    assert [(reject[ROW], reject["code"]) for reject in out.rejects.to_pylist()] == [(0, "content_dropped")]


def test_control_tokens_of_values_stay_text_and_those_of_the_template_are_control(render: Render) -> None:
    rows = [{"q": "a</s>b", "answer": "c</s>d"}]
    for template in ("{{ q }}</s>{{ answer }}</s>", "{{ q|trim('x')|lower }}</s>{{ answer|lower }}</s>"):
        out = render(rows, {"format_type": "jinja", "template": template, "label_column": "answer"})
        (made,) = out.table.to_pylist()
        controls = [span["start"] for span in made["spans"] if span["control"]]
        assert (made["text"], controls) == ("a</s>b</s>c</s>d</s>", [6, 16])
        assert trained_parts(made["text"], made["spans"]) == ["c</s>d</s>"]


def head_of(template: str, head: str) -> str:
    return head if "endgeneration" in template else head[: len(head) - moved_space(head)]


@pytest.mark.parametrize("name", [*TEMPLATES, *MARKED])
def test_prompts_for_inference_end_before_what_is_trained(tokenizer_folder: Path, rows: list[Row], name: str) -> None:
    template, twin = (TEMPLATES | MARKED)[name]
    prompt: dict[str, Any] = {"format_type": "jinja", "template": template}
    prompt |= {} if "endgeneration" in template else {"label_column": "answer"}
    tokenizer = {"name_or_path": str(tokenizer_folder), "max_length": 10**6}
    config = PipelineConfig.from_mapping({"dataset": {"name": "x"}, "tokenizer": tokenizer, "prompt_template": prompt})
    heads = {json.dumps(row): head_of(template, plain(twin, row).partition("⟦")[0]) for row in rows[:20]}
    asked = [row for row in rows[:20] if heads[json.dumps(row)].strip()]
    ids = PromptEngine(config).prompt_only(pa.Table.from_pylist(asked))["input_ids"].to_pylist() if asked else []
    tokenizers = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    decoded = [tokenizers.decode(row, skip_special_tokens=False) for row in ids]
    assert decoded == [heads[json.dumps(row)] for row in asked]


@pytest.mark.parametrize("answer", [{}, {"answer": ""}, {"answer": None}])
def test_prompts_need_no_answer(tokenizer_folder: Path, answer: Row) -> None:
    for prompt in ({"label_column": "answer"}, {"train_on": ["answer"]}):
        template = "{{ q|upper }} {{ 'yes' if answer == 'x' else answer|upper }}"
        config = PipelineConfig.from_mapping(
            {
                "dataset": {"name": "x"},
                "tokenizer": {"name_or_path": str(tokenizer_folder)},
                "prompt_template": {"format_type": "jinja", "template": template, **prompt},
            }
        )
        (ids,) = PromptEngine(config).prompt_only([{"q": "why", **answer}])["input_ids"].to_pylist()
        assert Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json")).decode(ids) == "WHY"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"train_on": ["answr"]}, "prompt_template.train_on: the template does not use answr, .*mean answer"),
        ({"train_on": ["user"], "label_column": "answer"}, "prompt_template.train_on: the template does not use user"),
        (
            {"train_on": ["q"], "template": "{{ q }}{% generation %}{{ answer }}{% endgeneration %}"},
            "prompt_template.train_on: has no effect, because .* marks decide",
        ),
        (
            {"train_on": ["user"], "format_type": "custom", "template": "{q} {answer}", "label_column": "q"},
            "only with format_type jinja",
        ),
    ],
)
def test_a_list_that_names_no_columns_is_refused(render: Render, prompt: Row, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        render(ROWS, {"format_type": "jinja", "template": "{{ q }} {{ answer }}", **prompt})
