"""Chat templates of public families: their text is transformers', and what is trained is what inference generates.

`support.public_templates` has the conversations and the oracle. Each of the small templates in
`support/family_templates` behaves as some public families do that differ from most others. The public templates
themselves are in a folder of the real data.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.paths import FAMILY_TEMPLATES
from support.public_templates import (
    CALLED,
    ONE,
    TALKS,
    TWO,
    Public,
    Talk,
    Turns,
    call,
    inline,
    rendered,
    result,
    runs,
    said,
    text,
    user,
    verdicts,
)
from support.soak import REAL_DATA, SOAK, sweep

FAMILIES = sorted(path.stem for path in FAMILY_TEMPLATES.glob("*.jinja"))
PUBLIC = sorted((REAL_DATA / "public_templates").glob("*.jinja")) if REAL_DATA else []
ASK, NEXT = user("Who?"), user("Why?")
ADA, RAIN = said("Ada."), said("Rain.")
WEATHER = '<tool_call>weather {"city": "Rome"}</tool_call>'
RESULT_IN_PARTS = [ASK, said("", None, call(1)), result(1, text("Sunny.")), ADA]


def template(name: str) -> Public:
    return Public(name, (FAMILY_TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"))


def trained(name: str, talk: Talk, turns: Turns = "together") -> list[str] | str:
    """Return the trained parts of all texts of a conversation, or the message of its reject."""
    kept, refused = rendered(template(name), [talk], turns)
    return ": ".join(refused[0]) if refused else [part for row in kept[0] for _, part in runs(row)]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_conversation_is_right_or_refused_with_what_helps(name: str) -> None:
    few = [*TALKS.items()][:: 1 if SOAK else 4]
    found = list(verdicts(template(name), dict(few)))
    assert [verdict for verdict in found if verdict.kind not in ("right", "refused")] == []
    assert sum(verdict.kind == "right" for verdict in found) >= len(found) / 3


@pytest.mark.parametrize("path", PUBLIC, ids=lambda path: path.stem)
@sweep
def test_public_templates_are_right_or_refused_with_what_helps(path: Path) -> None:
    found = verdicts(Public(path.stem, path.read_text(encoding="utf-8")))
    assert [verdict for verdict in found if verdict.kind not in ("right", "refused")] == []


@pytest.mark.parametrize(
    ("talk", "expected"),
    [
        ([*CALLED, ADA], [f"<think></think>{WEATHER}<|observation|>", "<think></think>Ada.<|endoftext|>"]),
        ([ASK, ADA, NEXT, RAIN], ["<think></think>Ada.<|user|>", "<think></think>Rain.<|endoftext|>"]),
        (
            [ASK, said("Ada.", "So."), NEXT, RAIN],
            ["<think>So.</think>Ada.<|user|>", "<think></think>Rain.<|endoftext|>"],
        ),
        (
            [ASK, said("", "So.", call(1)), result(1), ADA, NEXT, RAIN],
            [
                f"<think>So.</think>{WEATHER}<|observation|>",
                "<think></think>Ada.<|user|>",
                "<think></think>Rain.<|endoftext|>",
            ],
        ),
        ([ASK, said("", None, call(1))], [f"<think></think>{WEATHER}<|endoftext|>"]),
    ],
)
def test_an_exact_turn_ends_with_the_token_that_the_next_one_starts_with(talk: Talk, expected: list[str]) -> None:
    """GLM 4.5 to 4.7: as in one text, where nothing else ends a turn."""
    assert trained("next-turn-stops", talk, "exact") == expected


def test_a_turn_with_a_thought_ends_alike_in_one_text_and_in_several() -> None:
    talk = [ASK, ADA, NEXT, RAIN]
    assert trained("next-turn-stops", talk) == trained("next-turn-stops", talk, "exact")


@pytest.mark.parametrize(
    ("name", "talk", "exact"),
    [
        ("other-end", [*CALLED, ADA], None),
        ("other-end-of-turns", [*CALLED, ADA], [f"{WEATHER}<|im_end|>", "Ada.<|im_end|>"]),
        ("other-end-of-turns", [ASK, ADA, *CALLED, RAIN], [f"{said}<|im_end|>" for said in ("Ada.", WEATHER, "Rain.")]),
        ("other-end-of-turns", [*CALLED, ADA, *CALLED], [f"{said}<|im_end|>" for said in (WEATHER, "Ada.", WEATHER)]),
    ],
)  # fmt: skip
def test_calls_that_end_otherwise_at_the_end_are_refused_and_exact_turns_named_if_they_help(
    name: str, talk: Talk, exact: list[str] | None
) -> None:
    """Nemotron Nano v2 writes the stop of calls in another place there, so that the calls had none."""
    message = trained(name, talk)
    assert isinstance(message, str)
    assert message.startswith("tool_calls: ")
    assert message.endswith("set prompt_template.turns: exact" if exact else "and train_on: completions")
    found = trained(name, talk, "exact")
    assert found == exact if exact else found == message


@pytest.mark.parametrize(
    ("talk", "expected"),
    [
        ([ASK, said("", None, call(1))], [f"{WEATHER}<EOS>"]),
        ([*CALLED, ADA], [f"{WEATHER}<EOS>", "Ada.<EOS>"]),
        ([ASK, ADA, *CALLED], ["Ada.<EOS>", f"{WEATHER}<EOS>"]),
        ([ASK, ADA], ["Ada.<EOS>"]),
    ],
)
def test_no_eos_is_added_to_calls_that_have_one(talk: Talk, expected: list[str]) -> None:
    """Hy3 writes EOS after calls, but none after an answer at the end of a conversation."""
    assert trained("eos-after-calls", talk) == [part.replace("<EOS>", "</s>") for part in expected]


@pytest.mark.parametrize("name", ["opened-thought", "opened-if-asked"])
@pytest.mark.parametrize("turns", ["together", "exact"])
@pytest.mark.parametrize(
    "talk",
    [
        [ASK, said(inline("So.", "Ada."))],
        [ASK, said(inline("So.", "Ada.")), NEXT, said(inline("Wet.", "Rain."))],
        [ASK, said(inline("So.", "Ada."), None, call(1)), result(1), said(inline("Wet.", "Rain."))],
    ],
)
def test_a_thought_that_the_prompt_opens_is_not_opened_again(name: str, turns: Turns, talk: Talk) -> None:
    """MiniMax-M2 and QwQ write contents whole, so that `<think>` is in them, too."""
    found = trained(name, talk, turns)
    assert isinstance(found, list)
    assert not any("<think>" in part for part in found)
    assert found[0].startswith("So.\n</think>\n\nAda.")


def test_a_thought_that_the_prompt_opens_is_trained_as_in_its_own_field() -> None:
    both: tuple[Turns, ...] = ("together", "exact")
    for turns in both:
        whole, divided = (
            trained("opened-thought", [ASK, one], turns) for one in (said(inline("So.", "Ada.")), said("Ada.", "So."))
        )
        assert whole == divided == ["So.\n</think>\n\nAda.<|im_end|>"]


@pytest.mark.parametrize(
    ("name", "talk", "expected"),
    [
        ("led-answers", [ASK, ADA, NEXT, RAIN], ["<|START|>Ada.<|END|><|im_end|>", "<|START|>Rain.<|END|><|im_end|>"]),
        ("led-answers", [ADA, NEXT, RAIN], ["<|START|>Ada.<|END|><|im_end|>", "<|START|>Rain.<|END|><|im_end|>"]),
        ("always-prompted", [ASK, ADA], ["<|START|>Ada.<|END|><|im_end|>"]),
        ("late-system", TALKS["late system"], [f"<|content|>{said}<|im_end|>" for said in (ONE, TWO)]),
    ],
)  # fmt: skip
def test_what_the_model_must_write_before_a_content_is_trained(name: str, talk: Talk, expected: list[str]) -> None:
    """Cohere's templates prompt with an empty thought, which no answer has; a late system message changes the start."""
    assert trained(name, talk) == expected


@pytest.mark.parametrize(
    ("name", "talk"),
    [
        ("json-parts", TALKS["part of a question"]),
        ("json-parts", TALKS["parts of an answer"]),
        ("json-parts", TALKS["parts of a system message"]),
        ("json-parts", RESULT_IN_PARTS),
        ("json-results", RESULT_IN_PARTS),
        ("json-results", TALKS["parts and call"]),
    ],
)
def test_text_parts_are_text_where_a_template_would_write_them_as_json(name: str, talk: Talk) -> None:
    """LFM2, GigaChat and Jamba; and of results Llama 3, EXAONE 4 and gpt-oss."""
    (found,) = rendered(template(name), [talk], "together")[0][0]
    plain = [
        {**turn, "content": "".join(part["text"] for part in turn["content"])}
        if isinstance(turn["content"], list)
        else turn
        for turn in talk
    ]
    (expected,) = rendered(template(name), [plain], "together")[0][0]
    assert found["text"] == expected["text"]
    assert runs(found) == runs(expected)
    assert '"type"' not in found["text"]


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        (["I am", "Ada."], True),
        (["I am ", "Ada."], False),
        (["I am", "\nAda."], False),
        (["I am ", "", "Ada."], False),
        ([" I am Ada. "], True),
        (["I ", "am Ada."], False),
    ],
)
def test_parts_that_a_template_trims_are_joined_only_where_that_is_the_same(parts: list[str], joined: bool) -> None:
    """Gemma 3 and 4, MiniMax-M1; other templates write them joined."""
    talk = [ASK, said(text(*parts))]
    found = trained("trimmed-parts", talk)
    if joined:
        assert found == ["".join(parts).strip() + "<|im_end|>"]
    else:
        assert (
            found == f"content_parts: the template trims each of the {len(parts)} content parts of message 1; join them"
        )
    apart = template("trimmed-parts").text.replace("part.text | trim", "part.text")
    kept, _ = rendered(Public("concatenated", apart), [talk], "together")
    assert runs(kept[0][0])[0][1] == "".join(parts) + "<|im_end|>"
