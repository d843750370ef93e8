"""The loss mask from raw rows to trained tokens: chat templates × conversations × tokenizers, against an oracle.

`chat_writers` writes each template's text and its trained parts by hand; `token_bytes` finds the bytes of each token. A
token is trained if one of its bytes is. All other conversations are rejected; the tables here list them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from support.chat_shapes import (
    ANSWERED,
    ASKED,
    DESCRIBED,
    TOOLS,
    WITH_ONE_CONTENT,
    Message,
    Shapes,
    answer,
    shapes,
    user,
)
from support.chat_writers import OWN, Part, Talk
from support.paths import SWEEP_TEMPLATES
from support.real_chat_writers import REAL
from support.small_tokenizers import CORPUS, SaveTokenizer
from support.soak import REAL_DATA, SOAK, each, pairs, sweep
from support.sweep_tokenizers import SHARED, TINY, Model, load
from support.token_bytes import written
from tokenloom import PromptEngine
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig

DATE = "26 Jul 2024"

THINKING, LINE_ENDS, PRIVATE = (
    [form.format(name) for form in WITH_ONE_CONTENT] for name in ("think marks", "line ends", "private")
)
EMPTY = {
    "nothing but empty answers": "empty_answer",
    "nothing but a blank answer": "empty_answer",
    "no content": "missing_content",
}
ALWAYS = EMPTY | dict.fromkeys(PRIVATE, "private_use")
"""Conversations that every template, or the stage before it, refuses."""
IGNORES_TOOLS: dict[str, str] = dict.fromkeys(DESCRIBED, "tools_ignored")
ALTERNATES = {
    "tools described": "tools_ignored",
    "tool called": "template_refused",
    "tools called in words": "template_refused",
    "late system": "template_refused",
    "two questions running": "template_refused",
    "two answers running": "template_refused",
    "the same answer running": "template_refused",
    "answer first": "template_refused",
    "tool answers": "template_refused",
}
ANY = set(shapes("", ""))
REFUSED: dict[str, dict[str, str]] = {
    "chatml-marked": {},
    "chatml-plain": IGNORES_TOOLS,
    "headers-dated": IGNORES_TOOLS,
    "inst-merged": ALTERNATES,
    "turns-renamed": IGNORES_TOOLS,
    "plain-names": IGNORES_TOOLS,
    "text-stop": IGNORES_TOOLS,
    "think-last": IGNORES_TOOLS | dict.fromkeys(THINKING, "unverified_spans"),
    "left-trimmed": IGNORES_TOOLS,
    "no-stop": IGNORES_TOOLS,
    "two-part-stop": IGNORES_TOOLS,
    "marked-contents": IGNORES_TOOLS,
    "footer": IGNORES_TOOLS,
    "stop-between": IGNORES_TOOLS,
    "eos-last": IGNORES_TOOLS,
    "answer-quoted": dict.fromkeys(ANY - {"ends with a question", *EMPTY}, "content_repeated") | IGNORES_TOOLS,
    "line-ends-replaced": IGNORES_TOOLS | dict.fromkeys(LINE_ENDS, "unverified_spans"),
    "upper-cased": dict.fromkeys(ANY - set(ALWAYS), "unverified_spans") | IGNORES_TOOLS,
    "alpaca": ALTERNATES,
    "chatml": ALTERNATES,
    "gemma-it": ALTERNATES | {"blank system": "unverified_spans"},  # it trims system and question as one text
    "llama-2-chat": ALTERNATES,
    "llama-3-instruct": ALTERNATES,
    "mistral-instruct": ALTERNATES,
    "qwen2.5-instruct": {},
    "qwen2_5_training": {},
    "zephyr": ALTERNATES,
}
"""Conversations that each template also refuses, with their reject codes; it must render all others correctly."""
NEVER_RIGHT = {"upper-cased", "answer-quoted"}
WRITES_BOS = {"headers-dated", "inst-merged", "turns-renamed", "alpaca", "chatml", "llama-2-chat"}
WRITES_BOS |= {"llama-3-instruct", "mistral-instruct"}
"""Templates that write BOS themselves."""

POLICIES = ("reject", "keep")
SWEPT = [*product(REAL, SHARED), *((*product(OWN, SHARED), *product(REAL, TINY)) if SOAK else ())]
SWEPT = [pair for pair in SWEPT if pair not in product(["stop-between"], SHARED)]
"""Templates and tokenizers, of which at least one is of the real data.

A stop that is only written between messages is recognized as a control token, which the shared stops are not.
"""

Models = Callable[[str], Model]


@pytest.fixture(scope="module")
def model_named(tmp_path_factory: pytest.TempPathFactory, save_tokenizer: SaveTokenizer) -> Models:
    folder = tmp_path_factory.mktemp("models")
    return cache(lambda name: load(name, folder, save_tokenizer))


def on_real_data(cases: Iterable[tuple[str, ...]]) -> list[Any]:
    """Mark cases that need the real data."""
    return [pytest.param(*case, marks=sweep) for case in cases]


def template_text(name: str) -> str:
    if name in OWN:
        return (SWEEP_TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    assert REAL_DATA
    return (REAL_DATA / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


Encoded = tuple[dict[str, tuple[list[int], list[int]]], dict[str, tuple[str, str]]]
"""For each conversation: ids and which are trained, or the code and message of its reject."""


def encode(template: str, model: Model, talks: Shapes, policy: str = "split") -> Encoded:
    """Take raw rows through all stages."""
    tokenizer = {
        "name_or_path": str(model.folder),
        "chat_template": template_text(template),
        "special_tokens": {"bos": model.bos, "eos": model.eos},
        "control_tokens_in_content": policy,
        "max_length": 1 << 24,
    }
    prompt = {"format_type": "chat", "date_string": DATE}
    sections = {"dataset": {"name": "x"}, "tokenizer": tokenizer, "prompt_template": prompt}
    engine = PromptEngine(PipelineConfig.from_mapping(sections))
    described = {name: json.dumps(TOOLS) for name in DESCRIBED}
    rows = [{"messages": talk, "tools": described.get(name, "")} for name, talk in talks.items()]
    out, names = engine.encode(pa.Table.from_pylist(rows)), list(talks)
    made = {names[row["rows"][0]]: (row["input_ids"], row["trained"]) for row in out.to_pylist()}
    refused = {names[row[ROW]]: (row["code"], row["message"]) for row in engine.rejects.to_pylist()}
    assert len(made) + len(refused) == out.num_rows + engine.rejects.num_rows == len(talks)
    return made, refused


def parts_of(template: str, name: str, talk: list[Message], model: Model) -> list[Part]:
    tools = TOOLS if name in DESCRIBED else None
    parts = [*(OWN | REAL)[template](Talk(talk, tools, DATE, model.bos, model.eos, model.eos))]
    return [Part(model.bos), *parts] if model.vocabulary.adds_first and template not in WRITES_BOS else parts


def fault(model: Model, parts: list[Part], ids: list[int], trained: list[int], keep: bool = False) -> str:
    """Return what is wrong with the tokens of a text, or "": each byte is spelled once and in order, control tokens are
    in their places, and a token is trained if one of its bytes is."""
    text = written(parts, model.control, keep)
    found = model.vocabulary.places(ids, text)
    if found is None:
        return "other text"
    starts, ends = found
    places = zip(starts.tolist(), ends.tolist(), map(model.vocabulary.special.get, ids), strict=True)
    control = {(start, end): token for start, end, token in places if token not in (None, "[UNK]")}
    if control != text.control:
        return f"control tokens {control} for {text.control}"
    before = np.concatenate([[0], np.cumsum(text.trained)])
    flags = np.array(trained, bool)
    wrong = flags != (before[ends] > before[starts])
    return "; ".join(
        f"{text.data[start:end]} {'trained' if flag else 'not trained'}"
        for start, end, flag in zip(starts[wrong], ends[wrong], flags[wrong], strict=True)
    )


@pytest.mark.parametrize(("template", "tokenizer"), [*each(OWN, TINY), *on_real_data(SWEPT)])
def test_trained_tokens_are_the_answers_and_their_stops(
    template: str,
    tokenizer: str,
    model_named: Models,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    if template in REAL or tokenizer in SHARED:
        request.getfixturevalue("real_data")
    model = model_named(tokenizer)
    talks = shapes(model.bos, model.eos)
    made, refused = encode(template, model, talks)
    record_property("right", len(made))
    record_property("refused", len(refused))
    assert all(message for _, message in refused.values())
    assert {name: code for name, (code, _) in refused.items()} == ALWAYS | REFUSED[template]
    parts = {name: parts_of(template, name, talks[name], model) for name in made}
    faults = {name: fault(model, parts[name], *tokens) for name, tokens in made.items()}
    assert {name: found for name, found in faults.items() if found} == {}
    if model.vocabulary.adds_first and template != "llama-2-chat":  # which writes one before every question
        begins = [list(map(model.vocabulary.special.get, ids)).count(model.bos) for ids, _ in made.values()]
        assert begins == [1] * len(made)


@pytest.mark.parametrize(
    ("template", "tokenizer", "policy"),
    [
        *pairs(OWN, TINY, POLICIES),
        *on_real_data((*pair, policy) for pair in SWEPT for policy in POLICIES if SOAK),
    ],
)
def test_control_tokens_in_contents_follow_the_policy(
    template: str, tokenizer: str, policy: str, model_named: Models, request: pytest.FixtureRequest
) -> None:
    if template in REAL or tokenizer in SHARED:
        request.getfixturevalue("real_data")
    model = model_named(tokenizer)
    talks = shapes(model.bos, model.eos)
    made, refused = encode(template, model, talks, policy)
    expected = ALWAYS | REFUSED[template]
    parts = {name: parts_of(template, name, talks[name], model) for name in talks if name not in expected}
    if policy == "reject":
        holding = {name for name, found in parts.items() if holds_control(found, model)}
        assert holding or template in NEVER_RIGHT
        expected |= dict.fromkeys(holding, "control_token_in_content")
    assert {name: code for name, (code, _) in refused.items()} == expected
    faults = {name: fault(model, parts[name], *tokens, policy == "keep") for name, tokens in made.items()}
    assert {name: found for name, found in faults.items() if found} == {}


def holds_control(parts: list[Part], model: Model) -> bool:
    return any(token in part.text for part in parts if not part.own for token in model.control)


@pytest.mark.parametrize(
    ("template", "tokenizer"),
    [*product(OWN, TINY), *on_real_data(SWEPT)] if SOAK else [("chatml-plain", "bytes"), ("inst-merged", "pieces")],
)
def test_a_message_of_a_megabyte_is_rendered(
    template: str, tokenizer: str, model_named: Models, request: pytest.FixtureRequest
) -> None:
    if template in REAL or tokenizer in SHARED:
        request.getfixturevalue("real_data")
    model, words = model_named(tokenizer), "one 👩‍👩‍👧 مرحبا e\u0301 2\n" + " ".join(CORPUS)
    long = words * (1 + (1 << 20) // len(words.encode()))
    talks = {"answer": [user(ASKED), answer(long)], "question": [user(long), answer(ANSWERED)]}
    made, refused = encode(template, model, talks)
    assert set(refused) == (set(talks) if template in NEVER_RIGHT else set())
    for name, tokens in made.items():
        assert fault(model, parts_of(template, name, talks[name], model), *tokens) == ""


@pytest.mark.parametrize("template", [*OWN, *on_real_data((name,) for name in REAL)])
def test_the_oracle_writes_what_transformers_writes(
    template: str, model_named: Models, request: pytest.FixtureRequest
) -> None:
    if template in REAL:
        request.getfixturevalue("real_data")
    model, today = model_named("bytes"), datetime.now().strftime("%d %b %Y")
    reference = PreTrainedTokenizerFast.from_pretrained(model.folder)
    text = template_text(template)
    for name, talk in shapes(model.bos, model.eos).items():
        if name == "no content":
            continue
        tools = TOOLS if name in DESCRIBED else None
        try:
            expected = reference.apply_chat_template(as_read(talk), tools=tools, tokenize=False, chat_template=text)
        except TemplateError:
            assert REFUSED[template].get(name) == "template_refused"
            continue
        parts = (OWN | REAL)[template](Talk(talk, tools, today, model.bos, model.eos, ""))
        assert "".join(part.text for part in parts) == expected, name
        assert REFUSED[template].get(name) != "template_refused"


def as_read(talk: list[Message]) -> list[Message]:
    """Return messages with parsed call arguments."""
    read = [dict(message) for message in talk]
    for message in read:
        if calls := message.get("tool_calls"):
            functions = [call["function"] for call in calls]
            parsed = [{**function, "arguments": json.loads(function["arguments"])} for function in functions]
            message["tool_calls"] = [{"type": "function", "function": function} for function in parsed]
    return read
