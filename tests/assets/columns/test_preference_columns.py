"""Preferences and labelled answers of every layout, compared with a per-row oracle."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.canonical_tables import field_of
from support.canonical_tables import said as message
from support.columns_stage import MAYBE, Row, as_json, canonical, codes, mapped
from support.columns_stage import kept as rows_of
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.forms import RANGES
from tokenloom.errors import ConfigError

PREFERENCE = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
TALK_TYPE = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "assistant"]), "content": st.sampled_from(["", "a", "b"])}
)
TALK = st.lists(TURN, max_size=4)


def kept(out: ChunkOutput) -> list[Row]:
    """Return the rows that were kept, without tools and variables of the template, which none of them has."""
    rows = rows_of(out)
    assert {(row.pop("tools"), row.pop("template_kwargs")) for row in rows} <= {("", "")}
    return rows


def preferred(own: list[Row], chosen: list[Row], rejected: list[Row]) -> Row | str:
    """The oracle: a row's preference, or the code of its problem."""
    if chosen == rejected:
        return "same_answers"
    chosen, rejected = completed(own, chosen, rejected), completed(own, rejected, chosen)
    count = 0
    while count < min(len(chosen), len(rejected)) and chosen[count] == rejected[count]:
        count += 1
    prefix = chosen[:count]
    if (own[: len(prefix)] == own and prefix[: len(own)] == own) or (own and prefix and own[-1] == prefix[-1]):
        prompt = prefix
    else:
        prompt = own + prefix
    if not prompt:
        return "no_common_prompt"
    for rest in (chosen[count:], rejected[count:]):
        if not any(turn["role"] == "assistant" and turn["content"].strip() for turn in rest):
            return "empty_answer"
    return {"prompt": prompt, "chosen": chosen[count:], "rejected": rejected[count:]}


def completed(own: list[Row], answer: list[Row], talk: list[Row]) -> list[Row]:
    """An answer alone after the other conversation's last user message, in a row without a prompt."""
    users = [index for index, turn in enumerate(talk) if turn["role"] == "user"]
    is_alone = answer and all(turn["role"] == "assistant" for turn in answer)
    if own or not users or not is_alone or talk[0]["role"] == "assistant":
        return answer
    return talk[: users[-1] + 1] + answer


def check(out: Any, expected: list[Row | str]) -> None:
    good = [row for row in expected if not isinstance(row, str)]
    assert kept(out) == [{role: [message(**turn) for turn in talk] for role, talk in row.items()} for row in good]
    assert codes(out) == {2 * index + 1: code for index, code in enumerate(expected) if isinstance(code, str)}


@given(st.lists(st.fixed_dictionaries({"prompt": MAYBE, "chosen": MAYBE, "rejected": MAYBE}), max_size=6))
def test_texts_become_one_question_and_two_answers(rows: list[Row]) -> None:
    def said(role: str, text: str | None) -> list[Row]:
        return [{"role": role, "content": text}] if (text or "").strip() else []

    out = canonical(rows, dict.fromkeys(PREFERENCE, pa.string()), **mapped(PREFERENCE))
    answers = [[said("assistant", row[role]) for role in ("chosen", "rejected")] for row in rows]
    expected = [preferred(said("user", row["prompt"]), *pair) for row, pair in zip(rows, answers, strict=True)]
    check(out, expected)


SHARED = st.builds(lambda own, a, b: {"prompt": own, "chosen": own + a, "rejected": own + b}, TALK, TALK, TALK)
APART = st.fixed_dictionaries({"prompt": TALK, "chosen": TALK, "rejected": TALK})
GROWN = st.builds(
    lambda own, more, a, b: {"prompt": own, "chosen": own + more + a, "rejected": own + more + b},
    TALK, TALK, TALK, TALK,
)  # fmt: skip


@given(st.lists(st.one_of(SHARED, APART, GROWN), max_size=6), st.booleans())
def test_the_common_start_of_conversations_is_the_prompt(rows: list[Row], with_prompt: bool) -> None:
    roles = PREFERENCE if with_prompt else {"chosen": "chosen", "rejected": "rejected"}
    data = [{role: row[role] for role in roles} for row in rows]
    out = canonical(data, dict.fromkeys(roles, TALK_TYPE), **mapped(roles))

    def waiting(own: list[Row]) -> list[Row]:
        """Remove an empty answer at the end, which is only a placeholder."""
        return own[:-1] if own and own[-1] == {"role": "assistant", "content": ""} else own

    own = [waiting(row["prompt"]) if with_prompt else [] for row in rows]
    check(out, [preferred(o, row["chosen"], row["rejected"]) for o, row in zip(own, rows, strict=True)])


def test_a_prompt_that_conversations_repeat_is_used_once() -> None:
    question = {"role": "user", "content": "q"}
    answers = [{"role": "assistant", "content": text} for text in "ab"]
    system = {"role": "system", "content": "s"}
    rows = [
        {"prompt": "q", "chosen": [question, answers[0]], "rejected": [question, answers[1]]},
        {"prompt": "q", "chosen": [system, question, answers[0]], "rejected": [system, question, answers[1]]},
        {"prompt": "q", "chosen": [answers[0]], "rejected": [answers[1]]},
    ]
    out = canonical(rows, **mapped(PREFERENCE))
    prompts = [[question], [system, question], [question]]
    check(out, [{"prompt": prompt, "chosen": answers[:1], "rejected": answers[1:]} for prompt in prompts])


def test_an_open_transcript_is_a_prompt_for_plain_answers() -> None:
    prompt = "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:"
    rows = [{"prompt": prompt, "chosen": " yes", "rejected": "no", "sys": "be kind"}]
    (row,) = kept(canonical(rows, **mapped({**PREFERENCE, "system": "sys"})))
    assert row["prompt"] == [
        message("system", "be kind"),
        message("user", "a"),
        message("assistant", "b"),
        message("user", "c"),
    ]
    assert row["chosen"] == [message("assistant", " yes")]


def test_messages_with_different_tool_calls_differ() -> None:
    def call(name: str) -> Row:
        return {"role": "assistant", "content": None, "tool_calls": [{"name": name, "arguments": "{}"}]}

    question = {"role": "user", "content": "q"}
    rows = [{"chosen": [question, call("f")], "rejected": [question, call(name)]} for name in "gf"]
    out = canonical(rows, **mapped({"chosen": "chosen", "rejected": "rejected"}))
    (row,) = kept(out)
    calls = [field_of(turn, "tool_calls") for turn in (*row["chosen"], *row["rejected"])]
    assert [found["function"]["name"] for (found,) in calls] == ["f", "g"]
    assert codes(out) == {3: "same_answers"}


@pytest.mark.parametrize("weight", [{"train": False}, {"weight": 0.0}, {"loss": False, "training": False}])
@pytest.mark.parametrize("other", [{}, {"name": "bob"}])
def test_prompts_that_differ_only_in_weights_are_one_prompt(weight: Row, other: Row) -> None:
    question = {"role": "user", "content": "q", **other}
    turn = {"role": "assistant", "content": "x"}
    answers = [{"role": "assistant", "content": text} for text in "ab"]
    rows = [
        {"chosen": [question, {**turn, **weight}, answers[0]], "rejected": [{**question, **weight}, turn, answers[1]]},
        {"chosen": [question, answers[0]], "rejected": [question, {**answers[0], **weight}]},
    ]
    out = canonical(rows, **mapped({"chosen": "chosen", "rejected": "rejected"}))
    (row,) = kept(out)
    assert [said["content"] for said in row["prompt"]] == ["q", "x"]
    assert [said["content"] for said in (*row["chosen"], *row["rejected"])] == ["a", "b"]
    assert codes(out) == {3: "same_answers"}


KTO = {"prompt": "prompt", "completion": "completion", "label": "label"}
LABELS: list[tuple[Any, bool | None]] = [
    (True, True), (False, False), (None, None), (1, True), (0, False), (2, None), (1.0, True), (0.5, None),
    ("true", True), (" False ", False), ("YES", True), ("no", False), ("1", True), ("0", False),
    ("desirable", True), ("Undesirable", False), ("maybe", None), ("", None),
]  # fmt: skip


@pytest.mark.parametrize(("label", "wanted"), LABELS)
def test_labels_are_true_false_or_rejected(label: Any, wanted: bool | None) -> None:
    rows = [{"prompt": "p", "completion": "c", "label": label}] * 2
    out = canonical(rows, **mapped(KTO))
    assert [row["label"] for row in kept(out)] == ([] if wanted is None else [wanted] * 2)
    assert set(codes(out).values()) == ({"not_a_label"} if wanted is None else set())


@given(
    st.lists(
        st.fixed_dictionaries({"prompt": MAYBE, "completion": MAYBE, "label": st.sampled_from([True, False, None])}),
        max_size=6,
    )
)
def test_labelled_answers_become_messages(rows: list[Row]) -> None:
    out = canonical(rows, {**dict.fromkeys(KTO, pa.string()), "label": pa.bool_()}, **mapped(KTO))
    expected, found = [], {}
    for index, row in enumerate(rows):
        checks = {
            "empty_prompt": (row["prompt"] or "").strip(),
            "empty_answer": (row["completion"] or "").strip(),
            "not_a_label": row["label"] is not None,
        }
        if wrong := [code for code, fine in checks.items() if not fine]:
            found[2 * index + 1] = wrong[0]
        else:
            prompt, completion = message("user", row["prompt"]), message("assistant", row["completion"])
            expected.append({"prompt": [prompt], "completion": [completion], "label": row["label"]})
    assert kept(out) == expected
    assert codes(out) == found


def test_a_constant_labels_every_row_and_answers_can_be_conversations() -> None:
    talk = [{"role": "user", "content": "q"}]
    answer = [{"role": "assistant", "content": "a"}]
    roles = {**KTO, "label": {"constant": False}}
    (row,) = kept(canonical([{"prompt": talk, "completion": answer}], **mapped(roles)))
    expected = {"prompt": [message("user", "q")], "completion": [message("assistant", "a")], "label": False}
    assert row == expected


def test_answers_that_differ_only_in_reasoning_differ() -> None:
    asked, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    thoughts = {"chosen": "well", "rejected": "badly"}
    talks = {side: [asked, {**answer, "reasoning_content": thought}] for side, thought in thoughts.items()}
    (row,) = kept(canonical([talks], **mapped({"chosen": "chosen", "rejected": "rejected"})))
    assert row == {
        "prompt": [message("user", "q")],
        "chosen": [message("assistant", "a", reasoning="well")],
        "rejected": [message("assistant", "a", reasoning="badly")],
    }


def test_one_message_as_an_object_is_an_answer() -> None:
    answers = {side: {"role": "assistant", "content": text} for side, text in (("chosen", "a"), ("rejected", "b"))}
    row = {"prompt": "q", **answers}
    expected = {side: [message(**answer)] for side, answer in answers.items()}
    for table in (pa.Table.from_pylist([row]), as_json(row)):
        assert kept(canonical(table, form="preference")) == [{"prompt": [message("user", "q")], **expected}]


ASKED = [{"role": "user", "content": "q"}]
ANSWERED = [{"role": "assistant", "content": "a"}]
OPEN = [*ASKED, {"role": "assistant", "content": "It is"}]
CALLED = [*ASKED, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]


@pytest.mark.parametrize(("prompt", "completion"), [(ASKED, ANSWERED), ("q", "a"), (ASKED[0], ANSWERED)])
def test_prompts_and_completions_of_messages_are_a_dialogue(prompt: Any, completion: Any) -> None:
    def messages(value: Any, role: str) -> list[Row]:
        talk = [value] if isinstance(value, dict) else value
        return [message(role, value)] if isinstance(value, str) else [message(**turn) for turn in talk]

    row = {"prompt": prompt, "completion": completion}
    tools = '[{"name": "f"}]'
    expected = {"prompt": messages(prompt, "user"), "completion": messages(completion, "assistant")}
    (found,) = rows_of(canonical(as_json({**row, "tools": tools}), form="dialogue"))
    assert found == {**expected, "tools": tools, "template_kwargs": ""}
    assert kept(canonical(as_json({**row, "label": True}), form="kto")) == [{**expected, "label": True}]
    assert kept(canonical(as_json({"prompt": prompt}), form="prompt_only")) == [{"prompt": expected["prompt"]}]


@pytest.mark.parametrize("form", ["dialogue", "kto", "preference", "prompt_only"])
def test_a_prompt_that_ends_with_the_start_of_the_answer_continues(form: str) -> None:
    other = [{"role": "assistant", "content": "b"}]
    answers = {"preference": {"chosen": ANSWERED, "rejected": other}, "prompt_only": {}}
    row = {"prompt": OPEN, **answers.get(form, {"completion": ANSWERED}), **({"label": True} if form == "kto" else {})}
    out = canonical(as_json(row), form=form)
    if form == "prompt_only":
        assert [*codes(out).values()] == ["started_answer"]
    else:
        (found,) = kept(out)
        assert [said["content"] for said in found["prompt"]] == [said["content"] for said in OPEN[:-1]]
        for side in answers.get(form, {"completion": ANSWERED}):
            said = row[side][0]["content"]
            assert found[side][0]["content"] == OPEN[-1]["content"] + said
            size = len(OPEN[-1]["content"])
            assert field_of(found[side][0], RANGES) == {"content": [[-1, size, 0.0], [size, size + len(said), None]]}
    assert len(kept(canonical(as_json({**row, "prompt": CALLED}), form=form))) == 1


ALONE = [{"role": "assistant", "content": "It is"}]
UNFIT: dict[str, tuple[list[Row], list[Row]]] = {
    "a start without a prompt": (ALONE, [{"role": "assistant", "content": " far"}]),
    "an answer that repeats the start": ([*ASKED, *ALONE], [{"role": "assistant", "content": "It is far"}]),
    "a start with a thought": ([*ASKED, ALONE[0] | {"reasoning_content": "Hm."}],
                               [{"role": "assistant", "content": " far"}]),
    "an answer with a thought": ([*ASKED, *ALONE],
                                 [{"role": "assistant", "content": " far", "reasoning_content": "Hm."}]),
    "an answer in parts": ([*ASKED, *ALONE], [{"role": "assistant", "content": [{"type": "text", "text": " far"}]}]),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_what_cannot_continue_a_started_answer_is_rejected(case: str) -> None:
    prompt, completion = UNFIT[case]
    out = canonical(as_json({"prompt": prompt, "completion": completion}), form="dialogue")
    assert [*codes(out).values()] == ["started_answer"]


def test_prompts_and_completions_without_messages_are_rejected() -> None:
    rows = as_json({"prompt": [], "completion": ANSWERED}, {"prompt": ASKED, "completion": ASKED}, {"prompt": " "})
    assert codes(canonical(rows, form="dialogue")) == {1: "empty_prompt", 3: "empty_answer", 5: "empty_prompt"}
    alone = rows.select(["prompt"])
    assert codes(canonical(alone, form="prompt_only")) == {1: "empty_prompt", 5: "empty_prompt"}


SPOKEN: dict[str, tuple[Any, Any]] = {
    "role first": ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}),
    "content first": ({"content": "a", "role": "assistant"}, {"content": "b", "role": "assistant"}),
    "ShareGPT": ({"from": "gpt", "value": "a"}, {"from": "gpt", "value": "b"}),
    "a list": ([{"role": "assistant", "content": "a"}], [{"role": "assistant", "content": "b"}]),
}
"""Answers whose JSON text is a message, or a list of one."""


@pytest.mark.parametrize("case", SPOKEN)
@pytest.mark.parametrize("indent", [None, 1])
def test_the_json_text_of_a_message_is_that_message(case: str, indent: int | None) -> None:
    chosen, rejected = (json.dumps(value, indent=indent) for value in SPOKEN[case])
    rows = [{"prompt": "q", "chosen": chosen, "rejected": rejected}] * 3
    (found, *_) = kept(canonical(rows, dict.fromkeys(PREFERENCE, pa.string()), **mapped(PREFERENCE)))
    assert [(side[0]["role"], side[0]["content"]) for side in (found["chosen"], found["rejected"])] == [
        ("assistant", "a"), ("assistant", "b"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["messages", "conversation", "conversations"])
def test_the_json_text_of_an_object_around_messages_is_named(name: str) -> None:
    texts = [json.dumps({name: [*ASKED, {"role": "assistant", "content": text}]}) for text in "ab"]
    pair = {"chosen": "chosen", "rejected": "rejected"}
    out = canonical([dict(zip(pair, texts, strict=True))], **mapped(pair))
    assert [*codes(out).values()] == ["not_messages"]
    assert "an object that holds a list of messages" in out.rejects["message"][0].as_py()


OTHER_JSON = ['{"answer": 3}', '{"content": "c", "title": "t"}', '{"role": "nurse", "content": 1}', "{", '{"role":']


@pytest.mark.parametrize("text", OTHER_JSON)
def test_other_json_is_the_text_of_the_answer(text: str) -> None:
    rows = [{"prompt": "q", "chosen": text, "rejected": "other"}]
    (found,) = kept(canonical(rows, dict.fromkeys(PREFERENCE, pa.string()), **mapped(PREFERENCE)))
    assert found["chosen"][0]["content"] == text


@pytest.mark.parametrize("field", ["text", "content", "value"])
def test_answers_in_objects_are_asked_for_by_their_field(field: str) -> None:
    rows = [{"prompt": "q", "chosen": {"score": 5, field: "a"}, "rejected": {"score": 1, field: "b"}}]
    expected = rf'column_mapping: \{{chosen: "chosen\.{field}", rejected: "rejected\.{field}"\}}'
    with pytest.raises(ConfigError, match=expected):
        canonical(rows)
