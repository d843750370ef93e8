"""Few-shot examples: never with the row's own prompt, never trained, and a function of the seed and the chunk."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.canonical_tables import CHATML, TOOLS, Row, chatml, config_of, prompts_of, said, table_of, weighted_parts
from support.rendered_prompts import Render, assert_partition, renders, trained_parts
from support.soak import each
from tokenloom.assets.prompts.few_shot.examples import draw_examples
from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.stage.rejects import ROW
from tokenloom.errors import ConfigError
from tokenloom.resources.tokenizers import resolve_tokenizer

hashes = st.lists(st.integers(0, 12), max_size=20).map(lambda found: np.array(found, np.uint64))


@given(asked=hashes, offered=hashes, count=st.integers(1, 6), seed=st.integers(-3, 3))
def test_a_draw_never_repeats_a_prompt_or_the_rows_own(
    asked: np.ndarray, offered: np.ndarray, count: int, seed: int
) -> None:
    picks, enough = draw_examples(count, seed, asked, np.arange(len(asked)), offered)
    assert picks.shape == (len(asked), count)
    for own, drawn, whether in zip(asked, picks, enough, strict=True):
        assert whether == (len(set(offered.tolist()) - {int(own)}) >= count)
        if whether:
            prompts = [int(offered[pick]) for pick in drawn]
            assert len(set(prompts)) == count
            assert int(own) not in prompts


def test_draws_are_uniform_over_prompts_positions_and_seeds() -> None:
    rows, count = 60_000, 3
    offered = np.array([0, 0, 0, 1, 2, 3, 4], np.uint64)  # one prompt of three rows, four of one
    asked = np.full(rows, 4, np.uint64)
    picks, _ = draw_examples(count, 1, asked, np.arange(rows), offered)
    for place in range(count):
        seen = np.bincount(offered[picks[:, place]].astype(int), minlength=4)
        assert len(seen) == 4
        assert ((seen - rows / 4) ** 2 / (rows / 4)).sum() < 25  # chi-square with 3 degrees of freedom
        of_first = np.bincount(picks[:, place][picks[:, place] < 3], minlength=3)
        assert ((of_first - of_first.mean()) ** 2 / of_first.mean()).sum() < 20
    orders = Counter(map(tuple, offered[picks].tolist()))
    assert len(orders) == 24
    assert max(orders.values()) < 1.15 * min(orders.values())
    other, _ = draw_examples(count, 2, asked, np.arange(rows), offered)
    assert abs((offered[other] == offered[picks]).mean() - 1 / 4) < 0.01


words = st.text(st.sampled_from("ab é你."), min_size=1, max_size=6).map(lambda text: text.strip() or "x")
PAIRS = st.lists(st.tuples(st.sampled_from("pqrst"), words), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def render(tokenizer_folder: Path) -> Render:
    return renders(tokenizer_folder)


TEXTS = {
    "custom": ({"template": "<s>Q: {q}\nA: {answer}\n--", "label_column": "answer"}, "Q: {}\nA: {}\n--", "<s>"),
    "custom without BOS": ({"template": "Q: {q}\nA: {answer}", "label_column": "answer"}, "Q: {}\nA: {}", ""),
    "BOS added": ({"template": "{q}:\n{answer}", "label_column": "answer", "add_bos": True}, "{}:\n{}", "<s>"),
    "jinja": (
        {"format_type": "jinja", "template": "{{ bos_token }}{{ q }}> {{ answer | trim }}", "label_column": "answer"},
        "{}> {}", "<s>",
    ),
    "marks": (
        {"format_type": "jinja", "template": "{{ q }}> {% generation %}{{ answer }}{{ eos_token }}{% endgeneration %}"},
        "{}> {}</s>", "",
    ),
    "everything": ({"template": "{q}:\n{answer}", "label_column": "answer", "train_on": "all"}, "{}:\n{}", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
@given(pairs=PAIRS, count=st.integers(1, 4), seed=st.integers(0, 3))
def test_texts_follow_the_texts_of_other_rows(
    render: Render, name: str, pairs: list[tuple[str, str]], count: int, seed: int
) -> None:
    prompt, shape, bos = TEXTS[name]
    rows = [{"q": question, "answer": answer} for question, answer in pairs]
    out = render(rows, {**prompt, "few_shot": {"count": count, "seed": seed}})
    enough = len({question for question, _ in pairs}) > count
    assert out.table.num_rows == (len(rows) if enough else 0)
    assert set(out.rejects["code"].to_pylist()) == (set() if enough else {"too_few_examples"})
    known = {shape.format(question, answer): question for question, answer in pairs}
    for made in out.table.to_pylist():
        question, answer = pairs[made[ROW]]
        *examples, own = made["text"].removeprefix(bos).split("\n\n")
        assert made["text"] == bos + "\n\n".join([*examples, own])
        assert [known[example] for example in examples] == list(dict.fromkeys(known[found] for found in examples))
        assert len(examples) == count
        assert question not in [known[example] for example in examples]
        assert own.replace("</s>", "") == shape.format(question, answer).replace("</s>", "")
        assert own.count("</s>") == 1
        space = " " * (name in ("custom", "custom without BOS", "jinja"))  # white space before a column belongs to it
        trained = own if name == "everything" else f"{space}{answer}</s>"
        assert trained_parts(made["text"], made["spans"]) == [trained]
        assert_partition(made["text"], made["spans"])


def test_a_prompt_with_its_completion_is_an_example(render: Render) -> None:
    rows = [{"prompt": f"{number}? ", "completion": f"yes {number}"} for number in range(3)]
    out = render(rows, {"format_type": "completion", "few_shot": {"count": 2}})
    for made in out.table.to_pylist():
        own = rows[made[ROW]]
        *examples, last = made["text"].split("\n\n")
        others = [row["prompt"] + row["completion"] for row in rows if row is not own]
        assert sorted(examples) == others
        assert last == f"{own['prompt']}{own['completion']}</s>"
        assert trained_parts(made["text"], made["spans"]) == [f" {own['completion']}</s>"]


def test_zero_shot_renders_as_before(render: Render) -> None:
    rows = [{"q": "a", "answer": "b"}]
    prompt = {"template": "{q}: {answer}", "label_column": "answer"}
    zero = render(rows, {**prompt, "few_shot": {"count": 0, "seed": 5}})
    assert zero.table.equals(render(rows, prompt).table)


systems = st.sampled_from(["", "", "S1", "S2"])
talks = st.builds(
    lambda system, turns, more: [
        *([said("system", system)] if system else []),
        *(said(role, text) for pair in turns for role, text in zip(("user", "assistant"), pair, strict=True)),
        *([said("user", "left open")] if more else []),
    ],
    systems,
    st.lists(st.tuples(st.sampled_from("pqrstu"), words), min_size=1, max_size=3),
    st.booleans(),
)


def turns_of(text: str) -> list[tuple[str, str]]:
    """Return the messages of ChatML text."""
    return re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", text)


def spoken(talk: Sequence[Row]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in talk]


def example_of(talk: Sequence[Row]) -> list[tuple[str, str]]:
    """Return a conversation up to its last answer, without system messages."""
    last = max(index for index, message in enumerate(talk) if message["role"] == "assistant")
    return [turn for turn in spoken(talk[: last + 1]) if turn[0] != "system"]


def splits(turns: list[tuple[str, str]], pool: list[list[tuple[str, str]]], count: int) -> list[list[int]]:
    """Yield every way to split turns into `count` examples."""
    if not count:
        return [[]] if not turns else []
    return [
        [index, *rest]
        for index, example in enumerate(pool)
        if turns[: len(example)] == example
        for rest in splits(turns[len(example) :], pool, count - 1)
    ]


@pytest.mark.parametrize(
    ("template", "train_on"), each([CHATML, TOOLS], ["completions", "last", "all", ["user", "assistant"]])
)
@given(rows=st.lists(talks, min_size=1, max_size=8), count=st.integers(1, 3), system=st.sampled_from([None, "YAML"]))
def test_conversations_follow_other_conversations(
    tokenizer_folder: Path, template: str, train_on: Any, rows: list[list[Row]], count: int, system: str | None
) -> None:
    prompt = {"few_shot": {"count": count}, "train_on": train_on, "system": system, "add_eos": False}
    config = config_of(tokenizer_folder, prompt, template)
    out = prompts_of("messages", table_of("messages", [{"messages": talk} for talk in rows]), config)
    pool = [example_of(talk) for talk in rows]
    enough = len({example[0] for example in pool}) > count
    assert (out.table.num_rows, out.rejects.num_rows) == ((len(rows), 0) if enough else (0, len(rows)))
    for made in out.table.to_pylist():
        own = spoken(rows[made[ROW]])
        if system and own[0][0] != "system":
            own = [("system", system), *own]
        rules, said_last = [turn for turn in own if turn[0] == "system"], [turn for turn in own if turn[0] != "system"]
        found = turns_of(made["text"])
        assert made["text"] == chatml([said(*turn) for turn in found])
        assert found[: len(rules)] == rules
        assert found[len(found) - len(said_last) :] == said_last
        readings = splits(found[len(rules) : len(found) - len(said_last)], pool, count)
        first = {pool[made[ROW]][0]}
        assert any(len({pool[index][0] for index in reading} - first) == count for reading in readings), (
            "an example asks what the row asks, or what another one asks"
        )
        answers = [f"{text}<|im_end|>" for role, text in said_last if role == "assistant"]
        expected = {
            "completions": answers,
            "last": answers[-1:],
            "all": ["\n" + chatml([said(*turn) for turn in said_last])],
        }.get(str(train_on), [f"{text}<|im_end|>" for _, text in said_last])
        if train_on == "all" and rules:
            expected = [chatml([said(*turn) for turn in rules]).removesuffix("\n"), *expected]
        assert [part for part, _ in weighted_parts(made["text"], made["spans"])] == expected


def test_pairs_get_chosen_examples_the_same_on_both_sides(tokenizer_folder: Path) -> None:
    rows = [
        {
            "prompt": [said("system", "S"), said("user", f"q{number}")],
            "chosen": [said("assistant", f"good {number}")],
            "rejected": [said("assistant", f"bad {number}")],
        }
        for number in range(6)
    ]
    for train_on in ("completions", "all"):
        prompt = {"format_type": "preference", "few_shot": {"count": 2}, "train_on": train_on}
        out = prompts_of("preference", table_of("preference", rows), config_of(tokenizer_folder, prompt))
        assert out.table.num_rows == 6
        for made in out.table.to_pylist():
            number, sides = made[ROW], {}
            for side, word in (("chosen", "good"), ("rejected", "bad")):
                *sides[side], asked, answer = turns_of(made[f"{side}_text"])
                assert (asked, answer) == (("user", f"q{number}"), ("assistant", f"{word} {number}"))
                parts = trained_parts(made[f"{side}_text"], made[f"{side}_spans"])
                assert parts == [f"{word} {number}<|im_end|>"]
            assert sides["chosen"] == sides["rejected"]
            system, *examples = sides["chosen"]
            assert system == ("system", "S")
            assert examples[1::2] == [("assistant", f"good {text[1:]}") for _, text in examples[::2]]
            assert ("user", f"q{number}") not in examples


def test_kto_rows_get_examples_with_label_true(tokenizer_folder: Path) -> None:
    rows = [
        {"prompt": [said("user", f"q{n}")], "completion": [said("assistant", f"a{n}")], "label": n % 2 == 0}
        for n in range(8)
    ]
    config = config_of(tokenizer_folder, {"format_type": "kto", "few_shot": {"count": 3}})
    out = prompts_of("kto", table_of("kto", rows), config)
    assert out.table["label"].to_pylist() == [row["label"] for row in rows]
    for made in out.table.to_pylist():
        examples = turns_of(made["text"])[:-2]
        assert {int(text[1:]) % 2 for _, text in examples} == {0}
        assert f"q{made[ROW]}" not in [text for _, text in examples]


def test_a_row_that_cannot_be_rendered_is_not_an_example(tokenizer_folder: Path) -> None:
    rows = [{"messages": [said("user", f"q{n}"), said("assistant", "\ue0d0" if n % 2 else "fine")]} for n in range(8)]
    out = prompts_of("messages", table_of("messages", rows), config_of(tokenizer_folder, {"few_shot": {"count": 3}}))
    assert out.table[ROW].to_pylist() == [0, 2, 4, 6]
    assert set(out.rejects["code"].to_pylist()) == {"private_use"}


@pytest.mark.parametrize("source", [None, "examples.jsonl"])
def test_prompts_without_answers_take_no_examples(tokenizer_folder: Path, source: str | None) -> None:
    few_shot = {"count": 1, **({"source": source} if source else {})}
    config = config_of(tokenizer_folder, {"format_type": "prompt_only", "few_shot": few_shot})
    with pytest.raises(ConfigError, match=r"few_shot\.count: prompts without answers cannot be examples"):
        renderer(config, {"form": "prompt_only", "roles": {"prompt": "prompt"}}, resolve_tokenizer(config))


def test_plain_text_takes_no_examples(tokenizer_folder: Path) -> None:
    config = config_of(tokenizer_folder, {"format_type": "text", "few_shot": {"count": 1}}, None)
    with pytest.raises(ConfigError, match=r"few_shot\.count: plain text has no prompts"):
        prompts_of("text", table_of("text", [{"text": "a"}]), config)
