"""Prompts of custom and Jinja templates: texts and trained bytes, compared with independent oracles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from support.rendered_prompts import Render, Row, assert_partition, renders, trained_parts
from tokenloom.assets.columns.mapping import resolve
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError

FIELD = re.compile(r"\{\{|\}\}|\{(\w+)\}")
CHARACTERS = st.characters(codec="utf-8", exclude_characters="\ue0d0\ue0d1\ue0d2\ue0d3")
TEXT = st.text(CHARACTERS, max_size=20)
ANSWER = st.text(CHARACTERS, min_size=1, max_size=20).filter(str.strip)
BLANKS = st.text("a \n", max_size=5)


@pytest.fixture(scope="module")
def render(tokenizer_folder: Path) -> Render:
    return renders(tokenizer_folder)


def fill(template: str, row: Mapping[str, str]) -> str:
    """Render a custom template: drop one final newline, halve doubled braces, replace each field once."""
    body = template[:-1] if template.endswith("\n") else template
    return FIELD.sub(lambda found: found[0][0] if found[1] is None else row[found[1]], body)


CUSTOM = "{{ {{x}} }} é\n### Q: {question}\n### C: {{{context}}}\n### A:\n{answer}"


@given(st.lists(st.tuples(TEXT, TEXT, ANSWER), min_size=1, max_size=5), st.sampled_from(["", "\n", "\n\n", " end\n"]))
def test_a_custom_template_renders_as_str_format_does(
    render: Render, values: list[tuple[str, str, str]], ending: str
) -> None:
    rows: list[Row] = [dict(zip(("question", "context", "answer"), value, strict=True)) for value in values]
    template = CUSTOM + ending
    out = render(rows, {"template": template, "label_column": "answer"})
    assert out.rejects.num_rows == 0
    for row, made in zip(rows, out.table.to_pylist(), strict=True):
        after = fill(ending, {})
        assert made["text"] == fill(CUSTOM, row) + "</s>" + after
        assert_partition(made["text"], made["spans"])
        assert trained_parts(made["text"], made["spans"]) == [row["answer"] + "</s>"]


@given(st.lists(st.tuples(TEXT, ANSWER), min_size=1, max_size=5))
def test_custom_template_with_the_answer_in_the_middle_trains_answer_and_eos(
    render: Render, values: list[tuple[str, str]]
) -> None:
    rows = [{"q": question, "answer": answer} for question, answer in values]
    out = render(rows, {"template": "A: {answer}\nQ: {q}, {q}", "label_column": "answer", "add_bos": True})
    for row, made in zip(rows, out.table.to_pylist(), strict=True):
        assert made["text"] == f"<s>A: {row['answer']}</s>\nQ: {row['q']}, {row['q']}"
        assert_partition(made["text"], made["spans"])
        assert trained_parts(made["text"], made["spans"]) == [f" {row['answer']}</s>"]
        controls = [span for span in made["spans"] if span["control"]]
        assert [made["text"].encode()[span["start"] : span["end"]] for span in controls] == [b"<s>", b"</s>"]


@pytest.mark.parametrize("between", ["", "\n", "!"])
@pytest.mark.parametrize("form", ["custom", "jinja"])
def test_an_eos_of_the_template_is_trained_and_not_added_again(render: Render, form: str, between: str) -> None:
    column = "{%s}" if form == "custom" else "{{ %s }}"
    template = f"{column % 'q'}: {column % 'answer'}{between}</s>\n--"
    prompt = {"format_type": form, "template": template, "label_column": "answer"}
    (made,) = render([{"q": "a", "answer": "b"}], prompt).table.to_pylist()
    written = f"{between}</s>" if between != "!" else f"</s>{between}</s>"  # text between them: not the answer's EOS
    assert made["text"] == f"a: b{written}\n--"
    assert trained_parts(made["text"], made["spans"]) == [f" b{written.removesuffix('!</s>')}"]


def test_eos_can_be_omitted(render: Render) -> None:
    out = render([{"q": "a", "answer": "b"}], {"template": "{q}: {answer}", "label_column": "answer", "add_eos": False})
    (made,) = out.table.to_pylist()
    assert made["text"] == "a: b"
    assert trained_parts(made["text"], made["spans"]) == [" b"]


def test_train_on_all_trains_every_byte(render: Render) -> None:
    out = render([{"q": "a", "answer": "b"}], {"template": "{q}: {answer}.", "train_on": "all"})
    (made,) = out.table.to_pylist()
    assert made["text"] == "a: b.</s>"
    assert trained_parts(made["text"], made["spans"]) == ["a: b.</s>"]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ({"template": "{q}: {answer}", "label_column": "answer"}, "<s>a: b</s>"),
        ({"template": "<s>{q}: {answer}", "label_column": "answer"}, "<s>a: b</s>"),
        ({"template": "{q}: {answer}", "label_column": "answer", "add_bos": False}, "a: b</s>"),
        ({"format_type": "jinja", "template": "{{ q }}: {{ answer }}", "label_column": "answer"}, "<s>a: b</s>"),
        (
            {"format_type": "jinja", "template": "{{ bos_token }}{{ q }}: {{ answer }}", "label_column": "answer"},
            "<s>a: b</s>",
        ),
        ({"format_type": "jinja", "template": "<s>{{ q }}: {{ answer }}", "label_column": "answer"}, "<s>a: b</s>"),
        ({"template": "{q}: {answer}", "label_column": "answer", "add_bos": "template"}, "<s>a: b</s>"),
    ],
)
def test_bos_is_written_once(render: Render, bos_tokenizer_folder: Path, prompt: Row, expected: str) -> None:
    out = render([{"q": "a", "answer": "b"}], prompt, folder=bos_tokenizer_folder)
    assert out.table["text"].to_pylist() == [expected]


@pytest.mark.parametrize("given", ["{{ bos_token }}", ""])
@pytest.mark.parametrize("add_bos", ["auto", "template", True, False])
def test_bos_of_a_chat_template(
    render: Render, bos_tokenizer_folder: Path, tokenizer_folder: Path, given: str, add_bos: str | bool
) -> None:
    """`template` writes what `apply_chat_template` does."""
    template = f"{given}{{% for m in messages %}}{{{{ m.role }}}}: {{{{ m.content }}}}\n{{% endfor %}}"
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    for folder in (bos_tokenizer_folder, tokenizer_folder):
        prompt = {"format_type": "chat", "add_bos": add_bos, "add_eos": False}
        (made,) = render([{"messages": talk}], prompt, {"chat_template": template}, folder).table["text"].to_pylist()
        reference = PreTrainedTokenizerFast.from_pretrained(folder)
        theirs = reference.apply_chat_template(talk, tokenize=False, chat_template=template)
        adds = add_bos is True or (add_bos == "auto" and folder == bos_tokenizer_folder)
        assert made == ("<s>" if adds and not given else "") + theirs


def test_add_bos_true_adds_one_where_the_tokenizer_would_not(render: Render) -> None:
    out = render([{"q": "a", "answer": "b"}], {"template": "{q}: {answer}", "label_column": "answer", "add_bos": True})
    assert out.table["text"].to_pylist() == ["<s>a: b</s>"]


@pytest.mark.parametrize(
    ("bad", "line"), [("{q}\n{answer} }", 1), ("a\nb\n{ {answer}", 2), ("{}{answer}", 0), ("\n{answer}\n\n{q", 3)]
)
def test_a_lone_brace_is_one_fault_at_its_line(tmp_path: Path, tokenizer_folder: Path, bad: str, line: int) -> None:
    body = "\n".join(f"    {text}" for text in bad.split("\n"))
    path = tmp_path / "data.yaml"
    text = f"dataset: {{name: x}}\nprompt_template:\n  label_column: answer\n  template: |2\n{body}\n"
    path.write_text(text)
    config = PipelineConfig.from_file(path)
    columns = [{"column": name, "type": "string"} for name in ("q", "answer")]
    with pytest.raises(ConfigError) as raised:
        resolve(config, columns)
    assert [fault.place for fault in raised.value.faults] == [f"{path}:{5 + line}"]


IF_INPUT = "### {{ question }}\n{% if context %}\n>> {{ context }}\n{% endif %}\nAnswer: {{ answer }}"


@given(st.lists(st.tuples(TEXT, TEXT, ANSWER), min_size=1, max_size=6))
def test_jinja_template_with_a_condition_follows_each_row(render: Render, values: list[tuple[str, str, str]]) -> None:
    rows = [dict(zip(("question", "context", "answer"), value, strict=True)) for value in values]
    out = render(rows, {"format_type": "jinja", "template": IF_INPUT + "\n", "label_column": "answer"})
    assert out.rejects.num_rows == 0
    for row, made in zip(rows, out.table.to_pylist(), strict=True):
        middle = f">> {row['context']}\n" if row["context"] else ""
        assert made["text"] == f"### {row['question']}\n{middle}Answer: {row['answer']}</s>"
        assert_partition(made["text"], made["spans"])
        assert trained_parts(made["text"], made["spans"]) == [f" {row['answer']}</s>"]


@given(st.lists(st.tuples(TEXT, ANSWER), min_size=1, max_size=6))
def test_jinja_trim_trains_the_trimmed_answer(render: Render, values: list[tuple[str, str]]) -> None:
    rows = [{"q": question, "answer": answer} for question, answer in values]
    template = "{{ q | trim }}\nA: {{ answer | trim }}\n--"
    out = render(rows, {"format_type": "jinja", "template": template, "label_column": "answer"})
    assert out.rejects.num_rows == 0
    for row, made in zip(rows, out.table.to_pylist(), strict=True):
        answer = row["answer"].strip()
        assert made["text"] == f"{row['q'].strip()}\nA: {answer}</s>\n--"
        assert trained_parts(made["text"], made["spans"]) == [f" {answer}</s>"]


@given(st.lists(st.tuples(BLANKS, BLANKS.filter(str.strip)), min_size=1, max_size=6))
@example([("hi\n", "\nfoo")])
def test_trimmed_and_untrimmed_values_are_distinguished(render: Render, values: list[tuple[str, str]]) -> None:
    rows = [{"q": question, "answer": answer} for question, answer in values]
    prompt = {"format_type": "jinja", "template": "{{ q | trim }}\n{{ answer }}", "label_column": "answer"}
    out = render(rows, prompt)
    assert out.table.num_rows + out.rejects.num_rows == len(rows)
    for made in out.table.to_pylist():
        row = rows[made[ROW]]
        assert made["text"] == f"{row['q'].strip()}\n{row['answer']}</s>"
        assert trained_parts(made["text"], made["spans"]) == [row["answer"] + "</s>"]


@given(st.lists(st.tuples(TEXT, ANSWER), min_size=1, max_size=6))
def test_jinja_generation_marks_decide_what_is_trained(render: Render, values: list[tuple[str, str]]) -> None:
    rows = [{"q": question, "answer": answer} for question, answer in values]
    template = "Q {{ q }}\n{% generation %}A {{ answer }}.{% endgeneration %} end"
    out = render(rows, {"format_type": "jinja", "template": template})
    assert out.rejects.num_rows == 0
    for row, made in zip(rows, out.table.to_pylist(), strict=True):
        assert made["text"] == f"Q {row['q']}\nA {row['answer']}.</s> end"
        assert_partition(made["text"], made["spans"])
        assert trained_parts(made["text"], made["spans"]) == [f"A {row['answer']}.</s>"]


def test_an_answer_that_the_template_changes_is_trained_as_written(render: Render) -> None:
    rows = [{"q": "a", "answer": "SHOUT"}, {"q": "b", "answer": "whisper"}]
    prompt = {"format_type": "jinja", "template": "{{ q }}: {{ answer | upper }}", "label_column": "answer"}
    out = render(rows, prompt)
    assert out.rejects.num_rows == 0
    texts = {made["text"]: trained_parts(made["text"], made["spans"]) for made in out.table.to_pylist()}
    assert texts == {"a: SHOUT</s>": [" SHOUT</s>"], "b: WHISPER</s>": [" WHISPER</s>"]}


def test_private_use_marks_in_data_are_rejected_not_confused(render: Render) -> None:
    rows = [{"q": "\ue0d00\ue0d1", "answer": "x"}, {"q": "b", "answer": "y"}]
    out = render(rows, {"format_type": "jinja", "template": "{{ q }}: {{ answer }}", "label_column": "answer"})
    assert out.table["text"].to_pylist() == ["b: y</s>"]
    assert out.rejects["code"].to_pylist() == ["private_use"]


@pytest.mark.parametrize("padding", ["a", "a\nb\nc"])
@pytest.mark.parametrize("broken", ["{% if %}", "{{ q", "{% endfor %}", "{{ q | nofilter }}"])
def test_a_jinja_syntax_error_names_its_line(tmp_path: Path, broken: str, padding: str) -> None:
    lines = [*padding.split("\n"), broken]
    head = "dataset: {name: x}\nprompt_template:\n  format_type: jinja\n  label_column: q\n  template: |\n"
    path = tmp_path / "data.yaml"
    path.write_text(head + "".join(f"    {line}\n" for line in lines))
    with pytest.raises(ConfigError) as raised:
        resolve(PipelineConfig.from_file(path), [{"column": "q", "type": "string"}])
    assert [fault.place for fault in raised.value.faults] == [f"{path}:{5 + len(lines)}"]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_any_number_of_fields_is_distinguished_by_which_are_empty(render: Render, count: int) -> None:
    names = [f"f{index}" for index in range(count)]
    template = "".join(f"{{% if {name} %}}[{{{{ {name} }}}}]{{% endif %}}" for name in names) + "= {{ answer }}"
    empty = [row for row in range(count) if count < 100 or row % 64 in (0, 1, 62, 63)]  # at the ends of machine words
    rows = [{name: "" if index in (row, count - 1) else name for index, name in enumerate(names)} for row in empty]
    rows = [{**row, "answer": f"a{index}"} for index, row in enumerate(rows)] + [dict.fromkeys([*names, "answer"], "x")]
    out = render(rows, {"format_type": "jinja", "template": template, "label_column": "answer", "add_eos": False})
    assert out.table["text"].to_pylist() == [
        "".join(f"[{row[name]}]" for name in names if row[name]) + f"= {row['answer']}" for row in rows
    ]
