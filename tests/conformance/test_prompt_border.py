"""The ids of a prompt for inference start those of its row, and the trained tokens come right after; or it is counted.

The oracle is the ids alone: those of the row, against those of the prompt tokenized by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.border_tokenizers import MADE, REAL, write_tokenizer
from support.soak import SOAK, each, sweep
from support.terminal import run_here
from tokenloom import PromptEngine
from tokenloom.assets.building.build import Build
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import resolve
from tokenloom.assets.prompts.chat_certificate import ends_before_space
from tokenloom.assets.prompts.render import chat_format, is_chat, renderer
from tokenloom.assets.prompts.spans import border_rule
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import sketch
from tokenloom.assets.stage.rows import in_pairs
from tokenloom.assets.tokens.answer_borders import broken
from tokenloom.assets.tokens.encode import ContentEncoder
from tokenloom.assets.tokens.stage import tokenize
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.tables.json_text import rows_table
from tokenloom.resources.tables.ragged import sides
from tokenloom.resources.tokenizers import TOKENIZER, resolve_tokenizer

Row = dict[str, Any]
COUNT = 1000 if SOAK else 100
"""Real rows."""

ODD = [
    "", "Nairobi", " Nairobi", "  two spaces", "\nline", "\n\nparagraph", "\ttab", " \n both",
    "144", "12, 13", "(a)", "/*", "'s",
    "'quoted'", "\u0301 combining", "\u200dzwj", "👩‍👩‍👧", "你好", "\u3000wide", "مرحبا", "ﬁ", "\u00a0nbsp",
    "...", ":", "-1", "\r\nx", "<b>", "_",
]  # fmt: skip
"""Answers that can join the end of a prompt."""

ASKED = ["What is it?", "x = 1\n", "two  ", "a \n\n", "你好", "e"]
ROWS: list[Row] = [{"q": q, "a": a} for q in ASKED for a in ODD if a.strip()]
LINES = [f"Q: {row['q']}\nA: {row['a']}\n\nAnswer:\nThe same" for row in ROWS] * 2

TURN = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
BEGUN = f"{{% for m in messages %}}{TURN}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ '<|im_start|>assistant\n' }}}}{{% endif %}}"  # noqa: E501
SPACED = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)
"""As Llama 2's: the generation prompt ends before the space that rows have before answers."""

TALK = {"column_mapping": {"prompt": "q", "completion": "a"}}
ENDS = [": ", ":\n", ":\n\n", ":  ", ":\t", ":\n ", "\n \n", ":\r\n", ": \n", "", ":", "答：", " (", "\n\n\n", "\u3000"]


def custom(end: str, **more: Any) -> tuple[Row, Row]:
    return {"template": f"Q {{q}}{end}{{a}}", "label_column": "a", **more}, {}


def chat(template: str) -> tuple[Row, Row]:
    return {"format_type": "chat", "chat_template": template}, TALK


FORMATS: dict[str, tuple[Row, Row]] = {
    **{f"custom {end!r}": custom(end) for end in ENDS},
    "custom, all trained": custom("\nA: ", train_on="all"),
    "custom, more after": ({"template": "{q} A: {a}\n\nEnd of {q}", "label_column": "a"}, {}),
    "few-shot": custom("\nA: ", few_shot={"count": 2}),
    "jinja label": ({"format_type": "jinja", "template": "{{ q }}\nA: {{ a }}", "label_column": "a"}, {}),
    "jinja marks": ({"format_type": "jinja", "template": "{{ q }}\nA: {% generation %}{{ a }}{% endgeneration %}"}, {}),
    "completion": ({"format_type": "completion"}, TALK),
    "completion ': '": ({"format_type": "completion"}, {"column_mapping": {"prompt": "{q}: ", "completion": "a"}}),
    "completion '\\n\\n'": (
        {"format_type": "completion"},
        {"column_mapping": {"prompt": "{q}\n\n", "completion": "a"}},
    ),
    **{f"chat {name}": chat(name) for name in ("alpaca", "chatml", "lines", "plain", "qa", "zephyr")},
    "chat without marks": chat(BEGUN),
    "chat after a space": chat(SPACED),
    "preference": ({"format_type": "preference", "chat_template": BEGUN}, {}),
    "kto": ({"format_type": "kto", "chat_template": BEGUN}, {}),
}
ALWAYS = {"custom ': '", "custom ':\\n'", "few-shot", "jinja label", "chat lines", "chat qa", "chat without marks"}
"""Formats in which ordinary answers always follow their prompt, with tokenizers that keep line breaks apart."""


def rows_for(name: str, rows: list[Row]) -> list[Row]:
    said = [([{"role": "user", "content": row["q"]}], [{"role": "assistant", "content": row["a"]}]) for row in rows]
    if name == "preference":
        other = [{"role": "assistant", "content": "No."}]
        return [{"prompt": asked, "chosen": made, "rejected": other} for asked, made in said]
    if name == "kto":
        return [{"prompt": asked, "completion": made, "label": True} for asked, made in said]
    return rows


def config_of(folder: Path, prompt: Row, dataset: Row) -> PipelineConfig:
    prompt, special = dict(prompt), {"bos": "<s>", "eos": "</s>", "pad": "</s>"}
    template = {"chat_template": prompt.pop("chat_template")} if "chat_template" in prompt else {}
    tokenizer = {"name_or_path": str(folder), "special_tokens": special, "max_length": 4096, **template}
    sections = {"dataset": {"name": "x", **dataset}, "tokenizer": tokenizer, "prompt_template": prompt}
    return PipelineConfig.from_mapping(sections)


def counted(config: PipelineConfig, table: pa.Table) -> tuple[int, dict[int, Any]]:
    """Return how many answers are counted, and the ids and flags of each row's texts, before anything is cut."""
    spec = resolve_tokenizer(config)
    mapping = resolve(config, merge([sketch(table)]))
    prompts = renderer(config, mapping.to_json(), spec)(to_canonical(table, mapping).table).table
    encoder = ContentEncoder(spec.files[TOKENIZER], spec.control, keep_control=False)
    out = in_pairs(lambda texts: tokenize(texts, encoder, spec.control, "split"))(prompts)
    talk = is_chat(config, mapping.to_json(), spec)
    spaced = talk and ends_before_space(chat_format(config, spec))
    texts: dict[int, Any] = {}
    for side in sides(out.table).values():
        for row in side.to_pylist():
            flags = [span["weight"] > 0 for span in row["spans"] for _ in range(span["end"] - span["start"])]
            texts.setdefault(row["_row"], []).append((row["input_ids"], flags))
    return sum(broken(out.counters, spaced).values()), texts


def wrong(config: PipelineConfig, rows: list[Row]) -> tuple[int, int, int, int]:
    """Return the number of texts, of those that are counted, of those that do not start with the ids of their prompt or
    have masked tokens after it, and of those in addition that train a token of the prompt."""
    table = rows_table(rows).append_column("_row", pa.array(range(len(rows)), pa.int32()))
    found, texts = counted(config, table)
    prompts = PromptEngine(config, [table]).prompt_only(table)
    pairs = [
        (own, ids, flags.index(True) if config.prompt_template.train_on != "all" else len(own))
        for row, own in zip(prompts["_row"].to_pylist(), prompts["input_ids"].to_pylist(), strict=True)
        for ids, flags in texts[row]
    ]
    bad = sum(ids[: len(own)] != own or first > len(own) for own, ids, first in pairs)
    return len(pairs), found, bad, bad + sum(ids[: len(own)] == own and first < len(own) for own, ids, first in pairs)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("borders")
    return {name: write_tokenizer(name, folder / name.replace(" ", "-"), LINES) for name in MADE}


@pytest.mark.parametrize(("tokenizer", "name"), each(MADE, FORMATS))
def test_rows_start_with_their_prompt_or_are_counted(folders: Mapping[str, Path], tokenizer: str, name: str) -> None:
    prompt, dataset = FORMATS[name]
    config = config_of(folders[tokenizer], prompt, dataset)
    rows, found, bad, doubtful = wrong(config, rows_for(name, ROWS))
    assert rows
    assert bad <= found <= doubtful
    if tokenizer in ("bpe", "llama-3", "sentencepiece", "sentencepiece without prefix"):
        assert bad == found == doubtful
    plain = [row for row in ROWS if row["a"][0].isascii() and row["a"][0].isalnum() and row["q"][-1] == "?"]
    if name in ALWAYS and tokenizer in ("bpe", "llama-3", "sentencepiece", "sentencepiece without prefix", "wordpiece"):
        assert wrong(config, rows_for(name, plain))[1:] == (0, 0, 0)


@sweep
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("tokenizer", [*REAL, *MADE[1:6]])
def test_real_rows_start_with_their_prompt_or_are_counted(
    real_data: Path, tmp_path_factory: pytest.TempPathFactory, tokenizer: str, name: str
) -> None:
    with (real_data / "math" / "gsm8k_train.jsonl").open(encoding="utf-8") as lines:
        math = [json.loads(line) for line in islice(lines, COUNT // 2)]
    tasks = json.loads((real_data / "multilingual" / "alpaca_zh_demo.json").read_text(encoding="utf-8"))
    rows = [{"q": row["question"], "a": row["answer"]} for row in math]
    rows += [{"q": row["instruction"], "a": row["output"]} for row in tasks[: COUNT // 2] if row["output"].strip()]
    folder = tmp_path_factory.getbasetemp() / f"real-{tokenizer.replace(' ', '-')}"
    if not folder.exists():
        write_tokenizer(tokenizer, folder, [f"{row['q']}\n{row['a']}" for row in rows if row["q"].isascii()], real_data)
    prompt, dataset = FORMATS[name]
    _, found, bad, doubtful = wrong(config_of(folder, prompt, dataset), rows_for(name, rows))
    assert bad <= found <= doubtful


def test_white_space_ends_prompts_as_the_tokenizer_asks(folders: Mapping[str, Path]) -> None:
    rules = {"bpe": "last", "llama-3": "breaks", "unigram of spaces": "none", "wordpiece": "breaks"}
    for name, rule in rules.items():
        config = config_of(folders[name], *custom(": "))
        assert border_rule(resolve_tokenizer(config)) == rule
    expected = {"bpe": "Q x:\n", "llama-3": "Q x:\n\n", "unigram of spaces": "Q x:"}
    for name, text in expected.items():
        engine = PromptEngine(config_of(folders[name], *custom(":\n\n")))
        assert engine.tokenizer.files
        ids = engine.prompt_only([{"q": "x", "a": "y"}])["input_ids"][0].as_py()
        own = PromptEngine(config_of(folders[name], {"format_type": "text", "add_eos": False}, {}))
        assert ids == own.encode(rows_table([{"text": text}]))["input_ids"][0].as_py()


SEGMENTS = [{"text": "Q: Who?\nA: ", "label": False}, {"text": "Me", "label": True}]
SAID: dict[str, tuple[Row, Row, list[Row], str]] = {
    "marks": (
        {"format_type": "jinja", "template": "{{ q }}: {% generation %}{{ a }}{% endgeneration %}"},
        {},
        [{"q": "Who is it", "a": "Me"}],
        "1 begin within a token that holds the end of the prompt; move the white space before {% generation %} into it",
    ),
    "answers that begin with white space": (
        {"template": "{q}:\n{a}", "label_column": "a"},
        {},
        [{"q": "Who is it", "a": "\n\nMe"}],
        "holds the end of the prompt; write a space, a line break or a control token before {answer}, and strip",
    ),
    "a blank line before a word": (
        {"format_type": "chat", "chat_template": "plain"},
        TALK,
        [{"q": "Who is it", "a": "Me"}],
        "1 change how the white space before them is tokenized; let the chat template's text before answers end with",
    ),
    "segments": (
        {"format_type": "text"},
        {"column_mapping": {"segments": "segments"}},
        [{"segments": SEGMENTS}],
        "1 begin within a token that holds the end of the prompt; move the white space before trained segments into",
    ),
    "a space after the generation prompt": (
        {"format_type": "chat", "chat_template": SPACED.replace("' ' + m", "'  ' + m")},
        TALK,
        [{"q": "Who is it", "a": "Me"}],
        "1 come after white space that is neither in the generation prompt nor trained; put that white space into",
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_builds_say_how_many_answers_do_not_follow_their_prompt(tmp_path: Path, case: str) -> None:
    prompt, dataset, rows, notice = SAID[case]
    lines = ["Who is it : Me\n\n", "Q: Who?\nA: Me", "[INST] Who is it [/INST]   Me", "a \n\n\n Me"] * 9
    write_tokenizer("bpe", tmp_path / "bpe", lines)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompt = dict(prompt)
    template = {"chat_template": prompt.pop("chat_template")} if "chat_template" in prompt else {}
    special = {"bos": "<s>", "eos": "</s>", "pad": "</s>"}
    tokenizer = {"name_or_path": "bpe", "special_tokens": special, **template}
    sections = {"dataset": {"name": "rows.jsonl", **dataset}, "tokenizer": tokenizer, "prompt_template": prompt}
    config = tmp_path / "rows.yaml"
    config.write_text(json.dumps(sections))
    done = run_here("build", config, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("tokens: 1 answers do not follow"))
    assert notice in line
    again = json.loads(run_here("build", config, "--json", folder=tmp_path).stdout)
    (tokens,) = [stage for stage in again["stages"] if stage["name"] == "tokens"]
    assert tokens["notices"] == [line.removeprefix("tokens: ")]
    for changed in (False, True):
        if changed:
            config.write_text(json.dumps({**sections, "length": {"strategy": "truncate_right"}}))
        shown = run_here("preview", config, folder=tmp_path)
        assert "not the tokens of the prompt at inference: '" in shown.stdout, shown.stderr


def test_nothing_is_said_of_prompts_that_rows_start_with(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"q": "Who is it", "a": "Me"}\n{"q": "And now", "a": "You"}\n')
    prompt = {"template": "Q: {q}\nA: {a}", "label_column": "a"}
    tokenizer = {"train": {"vocab_size": 300}, "special_tokens": {"eos": "</s>", "pad": "<pad>"}}
    sections = {"dataset": {"name": str(tmp_path / "rows.jsonl")}, "tokenizer": tokenizer, "prompt_template": prompt}
    build = Build(PipelineConfig.from_mapping(sections), ArtifactStore(tmp_path / "store"))
    assert [report.notices for report in build.run_all() if report.name == "tokens"] == [()]
