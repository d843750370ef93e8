"""Public chat templates against an oracle that knows only how they behave at inference.

    PYTHONPATH=. python -m tests.support.public_templates FOLDER [--only NAME] [--talk NAME] [--verbose]

FOLDER has `*.jinja` files, which are not part of this repository. Each is rendered with each conversation of `TALKS`,
with `turns: together` and `exact`. What `apply_chat_template` writes is compared with the text; what the model has to
generate after the generation prompt, up to the token on which inference of that family stops, with what is trained.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from tests.support.columns_stage import canonical
from tokenloom.assets.prompts.chat import ChatFormat
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PromptTemplateConfig
from tokenloom.resources.tables.json_text import json_column
from tokenloom.resources.templates.jinja import JinjaTemplate

Row = dict[str, Any]
Talk = list[Row]
Turns = Literal["together", "exact"]
DATE, TODAY = "2024-07-26", datetime(2024, 7, 26)
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Finds a {name}.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Where."}}},
        },
    }
    for name in ("weather", "train")
]

FAMILIES: dict[str, tuple[str, ...]] = {
    "seed:eos": ("<seed:eos>",),
    "<SPECIAL_12>": ("<SPECIAL_12>",),
    "<|assistant_end|>": ("<|assistant_end|>", "<|tools_suffix|>"),
    "<|END_OF_TURN_TOKEN|>": ("<|END_OF_TURN_TOKEN|>",),
    "<|observation|>": ("<|endoftext|>", "<|user|>", "<|observation|>", "<|system|>"),
    "<|message_sep|>": ("<|message_sep|>", "</s>"),
    "<|end_of_msg|>": ("<|end_of_msg|>",),
    "<end_of_sentence>": ("<end_of_sentence>",),
    "[e~[": ("[e~[",),
    "[|endofturn|]": ("[|endofturn|]",),
    "<tool_call|>": ("<turn|>", "<|tool_response>"),
    "<end_of_turn>": ("<end_of_turn>",),
    "<|content_model_end_sampling|>": ("<|content_model_end_sampling|>",),
    "<|return|>": ("<|return|>", "<|call|>", "<|end|>"),
    "<|bom|>": ("<|eom|>",),
    "<|calls|>": ("<|end|>", "<|calls|>"),
    "<|eot|>": ("<|eot|>", "<|eom|>"),
    "<|eot_id|>": ("<|eot_id|>", "<|eom_id|>"),
    "<|end_of_text|>": ("<|end_of_text|>",),
    "end▁of▁sentence": ("<｜end▁of▁sentence｜>",),
    "hy_eos": ("<｜hy_eos:opensource｜>",),
    "<|im_end|>": ("<|im_end|>",),
    "<|begin_assistant|>": ("<|end|>",),
    "'<|tool_result|>": ("<|end|>",),
    "<|end|>": ("<|endoftext|>", "<|end|>"),
    "</assistant>": ("</assistant>",),
    "<sep>": ("<sep>",),
}
"""By a token that only one family's templates write: EOS, and the other tokens on which inference stops."""

_TOKEN = re.compile(
    r"<\|[^|<>\s'\"{}]+\|>|<｜[^｜<>{}]+｜>|<[a-z_]+\|>|<\|[a-z_]+>|<SPECIAL_\d+>|\[/?[A-Z_]{3,}\]|\[\|[a-z]+\|\]"
    r"|<(?:start|end)_of_turn>|<(?:end|beginning)_of_sentence>|</?think>|</?tool_call>|</?tool_response>|</?seed:[a-z_]+>"
    r"|\[e~\[|\]~b\]|\]~!b\[|</?assistant>|<sep>"
)


@dataclass(frozen=True)
class Public:
    """A public template with the tokens of its family."""

    name: str
    text: str

    @cached_property
    def stops(self) -> tuple[str, ...]:
        return next((stops for token, stops in FAMILIES.items() if token in self.text), ("</s>",))

    @cached_property
    def tokens(self) -> dict[str, str]:
        bos = "<|startoftext|>" if "<|startoftext|>" in self.text else "<s>"
        return {"bos_token": bos, "eos_token": self.stops[0], "pad_token": "<pad>", "unk_token": "<unk>"}

    @cached_property
    def control(self) -> tuple[str, ...]:
        found = {*_TOKEN.findall(self.text), *self.stops, *self.tokens.values()}
        return tuple(sorted(found, key=lambda token: (-len(token), token)))

    def rendered(self, talk: Talk, tools: Any, prompted: bool = False, **more: Any) -> str:
        text = re.sub(r"strftime_now\(['\"]([^)]*)['\"]\)", lambda found: repr(TODAY.strftime(found[1])), self.text)
        given: Row = {"chat_template": text, "add_generation_prompt": prompted, **self.tokens, **more}
        return render_jinja_template([talk], tools=tools, documents=None, date_string=DATE, **given)[0][0]


def user(content: Any) -> Row:
    return {"role": "user", "content": content}


def said(content: Any, thought: str | None = None, *calls: Row) -> Row:
    row: Row = {"role": "assistant", "content": content}
    row |= {} if thought is None else {"reasoning_content": thought}
    return row | ({"tool_calls": list(calls)} if calls else {})


def call(number: int, city: Any = "Rome", name: str = "weather") -> Row:
    arguments = city if str(city).startswith("{") else {"city": city}
    function = {"name": name, "arguments": arguments}
    return {"id": f"call0000{number}", "type": "function", "function": function}


def result(number: int, content: Any = "Sunny.", name: str = "weather") -> Row:
    return {"role": "tool", "tool_call_id": f"call0000{number}", "name": name, "content": content}


def text(*texts: str) -> list[Row]:
    return [{"type": "text", "text": each} for each in texts]


def inline(thought: str, content: str) -> str:
    return f"<think>\n{thought}\n</think>\n\n{content}"


SYSTEM = {"role": "system", "content": "Be brief now."}
ASK, NEXT, MORE = user("Who are you?"), user("Why is that?"), user("When was it?")
ONE, TWO, THREE = "I am Ada.", "Because of rain.", "Last winter."
EARLY, LATE, DEEP = "An easy question.", "A harder question.", "Dates are known."
PAIR = (call(1, "Rome"), call(2, "Oslo", "train"))
CALLED = [ASK, said("", None, call(1)), result(1)]

TALKS: dict[str, Talk] = {
    "one answer": [ASK, said(ONE)],
    "system": [SYSTEM, ASK, said(ONE)],
    "two answers": [ASK, said(ONE), NEXT, said(TWO)],
    "three answers": [SYSTEM, ASK, said(ONE), NEXT, said(TWO), MORE, said(THREE)],
    "call": [*CALLED, said(ONE)],
    "call with words": [ASK, said("I look it up.", None, call(1)), result(1), said(ONE)],
    "call last": [ASK, said("", None, call(1))],
    "words and call last": [ASK, said("I look it up.", None, call(1))],
    "parallel": [ASK, said("", None, *PAIR), result(1), result(2, "Late.", "train"), said(ONE)],
    "parallel, other order": [ASK, said("", None, *PAIR), result(2, "Late.", "train"), result(1), said(ONE)],
    "two calls": [*CALLED, said("", None, call(2, "Oslo", "train")), result(2, "Late.", "train"), said(ONE)],
    "second call last": [*CALLED, said("", None, call(2, "Oslo", "train"))],
    "call, then question": [*CALLED, said(ONE), NEXT, said(TWO)],
    "question, then call": [ASK, said(ONE), NEXT, said("", None, call(1)), result(1), said(TWO)],
    "thought": [ASK, said(ONE, EARLY)],
    "thoughts": [ASK, said(ONE, EARLY), NEXT, said(TWO, LATE)],
    "thought last": [ASK, said(ONE), NEXT, said(TWO, LATE)],
    "thought first": [ASK, said(ONE, EARLY), NEXT, said(TWO)],
    "thoughts and calls": [ASK, said("", EARLY, call(1)), result(1), said(ONE, LATE), NEXT, said(TWO, DEEP)],
    "thought of a call": [ASK, said("", EARLY, call(1)), result(1), said(ONE)],
    "thought after a call": [*CALLED, said(ONE, LATE)],
    "empty thought": [ASK, said(ONE, "")],
    "inline": [ASK, said(inline(EARLY, ONE))],
    "inline twice": [ASK, said(inline(EARLY, ONE)), NEXT, said(inline(LATE, TWO))],
    "inline last": [ASK, said(ONE), NEXT, said(inline(LATE, TWO))],
    "inline unopened": [ASK, said(f"{EARLY}\n</think>\n\n{ONE}")],
    "inline and call": [ASK, said(inline(EARLY, "I look it up."), None, call(1)), result(1), said(inline(LATE, ONE))],
    "part of a question": [user(text("Who are you?")), said(ONE)],
    "parts of a question": [user(text("Who ", "are you?")), said(ONE)],
    "part of an answer": [ASK, said(text(ONE))],
    "parts of an answer": [ASK, said(text("I am ", "Ada.")), NEXT, said(text(TWO))],
    "spaced parts": [user(text(" Who\n", "\nare you? ")), said(text(ONE))],
    "parts of a system message": [{"role": "system", "content": text("Be ", "brief.")}, ASK, said(ONE)],
    "parts of a result": [ASK, said("", None, call(1)), result(1, text("Sunny.")), said(ONE)],
    "parts and call": [ASK, said(text("I look it up."), None, call(1)), result(1), said(ONE)],
    "call of none": [ASK, said(None, None, call(1)), result(1), said(ONE)],
    "call without content": [
        ASK,
        {"role": "assistant", "tool_calls": [call(1)]},
        result(1),
        said(ONE),
    ],
    "empty question": [user(""), said(ONE)],
    "empty answer": [ASK, said(""), NEXT, said(TWO)],
    "empty result": [ASK, said("", None, call(1)), result(1, ""), said(ONE)],
    "late system": [ASK, said(ONE), {"role": "system", "content": "Be long."}, NEXT, said(TWO)],
    "result first": [result(1), ASK, said(ONE)],
    "answer first": [said(ONE), ASK, said(TWO)],
    "ends with a question": [ASK, said(ONE), NEXT],
    "arguments as text": [ASK, said("", None, call(1, '{"city": "Rome", "days": [1, 2.50]}')), result(1), said(ONE)],
    "no arguments": [ASK, said("", None, {**call(1), "function": {"name": "weather", "arguments": {}}}), result(1)],
    "spaces": [user("  Who?\n"), said("\n I am Ada. \n"), NEXT, said(TWO)],
}


def joined(talk: Talk) -> Talk:
    """Return a conversation with the joined text in place of text parts."""
    return [
        {**turn, "content": "".join(part["text"] for part in turn["content"])}
        if isinstance(turn.get("content"), list)
        else turn
        for turn in talk
    ]


def with_arguments(talk: Talk, as_text: bool) -> Talk:
    def convert(given: Any) -> Any:
        if as_text:
            return given if isinstance(given, str) else json.dumps(given)
        return json.loads(given) if isinstance(given, str) else given

    def changed(one: Row) -> Row:
        return {**one, "function": {**one["function"], "arguments": convert(one["function"]["arguments"])}}

    return [
        {**turn, "tool_calls": list(map(changed, turn["tool_calls"]))} if "tool_calls" in turn else turn
        for turn in talk
    ]


def inlined(talk: Talk) -> Talk:
    """Return a conversation with the thoughts in the contents."""
    return [
        {
            **{name: value for name, value in turn.items() if name != "reasoning_content"},
            "content": inline(turn["reasoning_content"], turn["content"]),
        }
        if "reasoning_content" in turn
        else turn
        for turn in talk
    ]


def called_one_by_one(talk: Talk) -> Talk:
    """Return a conversation in which each call is in its own message, followed by its result."""
    results = {turn["tool_call_id"]: turn for turn in talk if turn["role"] == "tool"}
    found: Talk = []
    for turn in talk:
        calls = turn.get("tool_calls", ())
        found += [each for one in calls for each in ({**turn, "tool_calls": [one]}, results[one["id"]])]
        found += [turn] if not calls and turn["role"] != "tool" else []
    return found


def in_call_order(talk: Talk) -> Talk:
    """Return a conversation whose adjacent results are in the order of their ids."""
    found = list(talk)
    for at in range(len(found) - 1):
        both = found[at : at + 2]
        if all(turn["role"] == "tool" for turn in both):
            found[at : at + 2] = sorted(both, key=lambda turn: turn["tool_call_id"])
    return found


MENDED = {"as <think>": inlined, "join them": joined, "into its own message": called_one_by_one}
"""What rejects ask for in the data."""


def thinking(talk: Talk) -> Talk:
    """Return a conversation with each thought under all names that templates read."""
    return [
        {**dict.fromkeys(THOUGHTS, turn["reasoning_content"]), **turn} if "reasoning_content" in turn else turn
        for turn in talk
    ]


def tools_of(talk: Talk) -> Any:
    return TOOLS if any("tool_calls" in turn for turn in talk) else None


@dataclass
class Oracle:
    """What a template writes for a conversation, and what the model generates of it."""

    template: Public
    talk: Talk
    forms: list[Talk] = field(init=False)

    def __post_init__(self) -> None:
        self.tools, talk = tools_of(self.talk), thinking(self.talk)
        orders = [talk] if "tool_call_id" in self.template.text else [talk, in_call_order(talk)]
        self.forms = []
        for ordered in orders:
            given = [ordered, with_arguments(ordered, True), with_arguments(ordered, False)]
            forms = [parts for form in given for parts in (form, joined(form))]
            forms += [[{**turn, "content": turn.get("content") or ""} for turn in form] for form in forms]
            readable = [form for form in forms if self._reads(form)]
            self.forms += readable[:1]

    def _try(self, talk: Talk, prompted: bool = False, **more: Any) -> str:
        try:
            return self.template.rendered(talk, self.tools, prompted, **more)
        except (TemplateError, TypeError, KeyError, AttributeError, ValueError):
            return ""

    def _reads(self, talk: Talk) -> bool:
        """Whether the template reads the form: nothing is printed as Python or as JSON within JSON."""
        written = self._try(talk)
        bad = ("'type': 'text'", '"type": "text"', "{'city': 'Rome'", r'"{\"city')
        parts = [part["text"] for turn in talk if isinstance(turn.get("content"), list) for part in turn["content"]]
        given = [str(one["function"]["arguments"]) for turn in talk for one in turn.get("tool_calls", ())]
        nothing = any(turn.get("content", "") is None for turn in talk) and "None" in written
        shown = [*parts, *("Rome" for arguments in given if "Rome" in arguments)]
        return (
            bool(written)
            and not nothing
            and not any(sign in written for sign in bad)
            and all(p.strip() in written for p in shown)
        )

    def marked(self, form: Talk) -> list[str]:
        """Return the texts that a template's generation marks enclose."""
        given: Row = {"chat_template": self.template.text, **self.template.tokens, "return_assistant_tokens_mask": True}
        written, spans = render_jinja_template([form], tools=self.tools, documents=None, **given)
        return [written[0][int(start) : int(end)] for start, end in spans[0]]

    def without_tokens(self, trained: str) -> str:
        for token in self.template.control:
            trained = trained.replace(token, "")
        return trained.strip()

    @cached_property
    def texts(self) -> list[str]:
        return [self._try(form) for form in self.forms]

    @cached_property
    def header(self) -> str:
        """The generation prompt after a question."""
        ask = [{"role": "user", "content": "q"}]
        return self._try(ask, True)[len(self._try(ask)) :]

    def prompts(self, form: Talk, index: int) -> list[str]:
        reads = re.search(r"\benable_thinking\b", self.template.text)
        variants: list[Row] = [{}, *([{"enable_thinking": True}, {"enable_thinking": False}] if reads else [])]
        return [found for more in variants if (found := self._try(form[:index], True, **more))]

    def generated(self, form: Talk, index: int) -> list[tuple[str, str]]:
        """Return what inference can be prompted with before a message, and what it has to generate then.

        Empty if the template does not write the conversation up to the message as a continuation of a prompt.
        """
        own = self._try(form[: index + 1])
        after = self._after(form, index, own)
        found = []
        for prompt in self.prompts(form, index):
            if own.rstrip().startswith(prompt.rstrip()):
                body = own[len(prompt) :].rstrip()
                said = max((body.rfind(each) + len(each) for each in turn_text(form[index]) if each in body), default=0)
                ends = sorted(at + len(stop) for stop in self.template.stops if (at := body.find(stop, said)) >= 0)
                whole = body.rfind(self.template.stops[0])
                ends += [whole + len(self.template.stops[0])] * (whole >= said)
                found += [(prompt, body[:end]) for end in ends] or [
                    (prompt, body + after),
                    (prompt, own[len(prompt) :] + after),
                ]
                if not ends and index < len(self.talk) - 1 and after == self.template.stops[0]:
                    found.append((prompt, body))  # the template ends no turn: EOS is added after the last one
                found += [(prompt, body)] * (not ends and not body)
        return found

    def _after(self, form: Talk, index: int, own: str) -> str:
        """Return the token that the template writes next, if it ends the turn at inference; else EOS."""
        following = form[index + 1 : index + 2]
        longer = self._try(form[: index + 2]) if following else ""
        rest = longer[len(own.rstrip()) :].lstrip() if longer.startswith(own.rstrip()) else ""
        if not rest and following:
            plain = [*form[:index], {"role": "assistant", "content": "PLAIN"}]
            rest = self._try([*plain, *following]).rpartition("PLAIN")[2].lstrip()
        return next((stop for stop in self.template.stops if rest.startswith(stop)), self.template.stops[0])


def _names(turn: Row, tail: str) -> bool:
    shown = [turn.get("content"), *(one["function"]["name"] for one in turn.get("tool_calls", ()))]
    return any(isinstance(one, str) and one.strip() and one.strip() in tail for one in shown)


def runs(row: Row) -> list[tuple[str, str]]:
    """Return the text before each run of trained bytes, and the run."""
    data, found, end = row["text"].encode(), [], -1
    for span in row["spans"]:
        if span["weight"] > 0:
            start = found.pop()[0] if span["start"] == end else span["start"]
            end = span["end"]
            found.append((start, end))
    return [(data[:start].decode(), data[start:end].decode()) for start, end in found]


def rendered(template: Public, talks: Sequence[Talk], turns: Turns) -> tuple[dict[int, list[Row]], dict[int, tuple]]:
    tools = [json.dumps(tools_of(talk)) if tools_of(talk) else "" for talk in talks]
    out = canonical(pa.table({"messages": json_column([json.dumps(talk) for talk in talks]), "tools": tools}))
    numbers = pa.array([(row - 1) // 2 for row in out.table[ROW].to_pylist()], pa.int32())
    table = out.table.set_column(out.table.schema.get_field_index(ROW), ROW, numbers)
    settings = PromptTemplateConfig(format_type="chat", date_string=DATE, turns=turns)
    jinja = JinjaTemplate(template.text, DATE)
    made = ChatFormat(jinja, settings, template.tokens, template.control, None, template.stops[0]).render(table)
    kept: dict[int, list[Row]] = {}
    for row in made.table.to_pylist():
        kept.setdefault(row[ROW], []).append(row)
    refused = {(row[ROW] - 1) // 2: (row["code"], row["message"]) for row in out.rejects.to_pylist()}
    return kept, refused | {row[ROW]: (row["code"], row["message"]) for row in made.rejects.to_pylist()}


def fault(oracle: Oracle, rows: Sequence[Row], exact: bool) -> str:
    """Return what is wrong with the texts of a conversation, or ""."""
    if not oracle.forms:
        return "the template refuses this conversation"
    faults = [_fault(oracle, form, whole, rows, exact) for form, whole in zip(oracle.forms, oracle.texts, strict=True)]
    return "" if "" in faults else faults[0]


def _fault(oracle: Oracle, form: Talk, whole: str, rows: Sequence[Row], exact: bool) -> str:
    stops = oracle.template.stops
    if "{%- generation -%}" in oracle.template.text:
        marked = oracle.marked(form)
        if exact:  # each text is the start of the conversation
            marked += [one for count in range(1, len(form)) for one in oracle.marked(form[:count])]
        found = [trained for row in rows for _, trained in runs(row)]
        wrong = found != marked if not exact else not all(any(one in each for each in marked) for one in found)
        return f"trained {found} for {marked}" if wrong else ""
    if not exact:
        (row,) = rows
        eos = stops[0]
        if row["text"] != whole and row["text"].replace(eos, "") != whole.replace(eos, ""):
            return f"text {row['text']!r} for {whole!r}"
        if row["text"] != whole and row["text"].count(eos) > whole.count(eos) + 1:
            return f"EOS added: {row['text']!r} for {whole!r}"
    left = [run for row in rows for run in runs(row)]
    shown = list(left)
    for index, turn in enumerate(form):
        if turn["role"] != "assistant":
            continue
        found = [run for run in left if _is_turn(oracle, form, index, run, whole, exact)]
        if not found and not turn_text(turn):
            bare = [run for run in left if not oracle.without_tokens(run[1])]
            left = [run for run in left if run not in bare[:1]]
            continue  # the template can write nothing for an empty message
        if not found:
            expected = [body for _, body in oracle.generated(form, index)][:1]
            return f"message {index} is not trained as at inference: {[run for _, run in shown]} for {expected}"
        left.remove(found[0])
    return f"also trained: {left}" if left else ""


def _is_turn(oracle: Oracle, form: Talk, index: int, run: tuple[str, str], whole: str, exact: bool) -> bool:
    """Whether a trained run is what the model generates of a message."""
    before, trained = run
    possible, stops = oracle.generated(form, index), oracle.template.stops
    own = oracle._try(form[: index + 1]).rstrip()
    for prompt, body in possible:
        if before.rstrip() == prompt.rstrip() and trained.strip() == body.strip():
            return True
        rest, header = body.strip().removesuffix(trained.strip()).strip(), oracle.header.strip()
        if not exact and rest and rest == header and before.rstrip().endswith(header):
            return True  # a header that the template does not prompt with after results
        answers = [at for at, turn in enumerate(form) if turn["role"] == "assistant"]
        if index == answers[-1] and stops[0] not in own and trained.strip() == (body + stops[0]).strip():
            return True  # EOS is added after the last answer if the template writes none
        last_call = index == len(form) - 1 and "tool_calls" in form[index]
        if last_call and before.rstrip() == prompt.rstrip():  # nothing shows which of its stops comes next
            cores = [_core(trained, oracle), _core(body, oracle)]
            if cores[0] == cores[1] and any(trained.endswith(stop) for stop in stops):
                return True
    same = whole.startswith(own) and any(own.startswith(prompt.rstrip()) for prompt, _ in possible)
    if not exact and same:
        return False
    # written in another way than at inference: the whole turn as the template writes it there, with a stop
    content = turn_text(form[index])
    shown = [each for each in content if each in (whole if not exact else own)]
    at_header = _headed(oracle, form, index, before)
    ends = any(trained.rstrip().endswith(stop) for stop in stops) or not any(stop in own for stop in stops)
    alone = not any(each in trained for other in range(len(form)) if other != index for each in turn_text(form[other]))
    if exact and possible and form[index].get("reasoning_content", "") in own:
        return False
    return all(each in trained for each in shown) and at_header and ends and alone


def _core(text: str, oracle: Oracle) -> str:
    text = text.strip()
    for stop in oracle.template.stops:
        text = text.removesuffix(stop).strip()
    return text


def turn_text(turn: Row) -> list[str]:
    content = turn.get("content") or ""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    content = content.rpartition("</think>")[2]
    names = [one["function"]["name"] for one in turn.get("tool_calls", ())]
    return [each for each in (content.strip(), *names) if each]


def _headed(oracle: Oracle, form: Talk, index: int, before: str) -> bool:
    """Whether a text ends with the header of a generation prompt, with or without the thought that it opens."""
    base = oracle._try(form[:index])
    for prompt in oracle.prompts(form, index):
        header = prompt[len(base) :] if prompt.startswith(base) else prompt[-12:]
        if not header.strip():
            return True
        options = [header, header.partition("<think>")[0], header.partition("</think>")[0]]
        if any(option.strip() and before.rstrip().endswith(option.rstrip()) for option in options):
            return True
        at = before.rfind(re.split(r"(?<=.)<", header, maxsplit=1)[0])
        if at >= 0 and _within("".join(before[at:].split()), header):
            return True
        if before.startswith(base.rstrip()) and _within("".join(before[len(base.rstrip()) :].split()), header):
            return True
    return not any(oracle.prompts(form, index))


def _within(part: str, whole: str) -> bool:
    """Whether a text is the other one with parts left out."""
    rest = iter(whole)
    return all(char in rest for char in part)


@dataclass(frozen=True)
class Verdict:
    template: str
    talk: str
    turns: str
    kind: str
    detail: str = ""


def _is_true(template: Public, talk: Talk, turns: Turns, detail: str) -> bool:
    """Whether a reject is one of transformers' too, if it says so, and whether what it asks for in the data helps."""
    if detail.startswith("template_refused"):
        return not Oracle(template, talk).forms
    mended = next((mend(talk) for asked, mend in MENDED.items() if asked in detail), None)
    if mended is None:
        return True
    kept, refused = rendered(template, [mended], turns)
    bare = [{name: value for name, value in turn.items() if name != "reasoning_content"} for turn in mended]
    if refused and rendered(template, [bare], turns)[1]:
        return True  # it is refused for another reason, too
    return not refused and not fault(Oracle(template, mended), kept[0], turns == "exact")


def verdicts(template: Public, talks: dict[str, Talk] = TALKS) -> Iterator[Verdict]:
    """Yield a verdict on each conversation: right, refused, remedy (a wrong one) or wrong."""
    names = list(talks)
    both: tuple[Turns, ...] = ("together", "exact")
    made = {turns: rendered(template, list(talks.values()), turns) for turns in both}
    for number, name in enumerate(names):
        oracle, states = Oracle(template, talks[name]), {}
        for turns, (kept, refused) in made.items():
            if number in refused:
                states[turns] = ("refused", ": ".join(refused[number]))
            else:
                found = fault(oracle, kept[number], turns == "exact")
                states[turns] = ("wrong", found) if found else ("right", "")
        for turns, (kind, detail) in states.items():
            if kind == "refused":
                helps = turns == "together" and states["exact"][0] == "right"
                if ("turns: exact" in detail) != helps or not _is_true(template, talks[name], turns, detail):
                    kind = "remedy"
            yield Verdict(template.name, name, turns, kind, detail)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--talk", default="")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    everything = []
    talks = {name: talk for name, talk in TALKS.items() if given.talk in name}
    for path in sorted(given.folder.glob("*.jinja")):
        if given.only not in path.stem:
            continue
        found = list(verdicts(Public(path.stem, path.read_text(encoding="utf-8")), talks))
        everything += [vars(verdict) for verdict in found]
        counts.update((verdict.turns, verdict.kind) for verdict in found)
        tally = Counter(f"{verdict.turns} {verdict.kind}" for verdict in found)
        print(path.stem, dict(sorted(tally.items())), flush=True)
        for verdict in found:
            if given.verbose or verdict.kind in ("wrong", "remedy"):
                print(f"  {verdict.kind}: {verdict.talk}, {verdict.turns}: {verdict.detail[:700]}")
    print(dict(sorted((" ".join(key), count) for key, count in counts.items())))
    if given.json:
        given.json.write_text(json.dumps(everything, ensure_ascii=False, indent=0))


if __name__ == "__main__":
    main()
