"""The certificate of a chat template: what it does with a few test conversations, each finding with its evidence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

from tokenloom.assets.prompts.accepted import divided_by_template
from tokenloom.assets.prompts.chat import ChatFormat
from tokenloom.assets.prompts.conversations import group_by_shape, one_conversation
from tokenloom.assets.prompts.exact import TrainedTurn, texts_of
from tokenloom.assets.prompts.outline import attempt
from tokenloom.assets.prompts.spans import CLOSE, KIND_PARTS, OPEN, REASONING, SPAN_ROLES, TOOL_CALL, split_control
from tokenloom.errors import TemplateError
from tokenloom.resources.tables.ragged import one_array

ASKED, SAID, RULED = "QUESTION", "ANSWER", "RULE"
USER, ANSWER = {"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID}
EARLIER, NEXT = "REPLY", "FURTHER"
ENDS_WITH_EOS = "trained, ends with EOS"
KNOWN, LACKING = "known", "not in the tokenizer: "
UNCOUNTED = ", not counted apart"
_TOKEN = re.compile(r"<\|[^<>|\s]+\|>")
THOUGHTS = "THOUGHT", "CONCLUSION"
CALL = {"type": "function", "function": {"name": "lookup", "arguments": {"word": "x"}}}
RESULT = {"role": "tool", "content": "RESULT", "name": "lookup"}
CALLING: list[dict[str, Any]] = [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT, ANSWER]
TOOLS = '[{"type": "function", "function": {"name": "lookup", "description": "", "parameters": {}}}]'


@dataclass(frozen=True)
class Finding:
    """One property of a chat template with a tokenizer.

    Args:
        found: the result.
        evidence: the rendered text, or the reason for a rejection.
    """

    name: str
    found: str
    evidence: str


def certificate(chat: ChatFormat) -> list[dict[str, str]]:
    """Return the findings about a chat template with the dataset's settings, as JSON."""
    kinds = [] if chat.weights is None else [_kinds(chat)]
    chat = replace(chat, prompt=chat.prompt.model_copy(update={"train_on": "completions"})) if kinds else chat
    together = chat.prompt.model_copy(update={"turns": "together"})
    return [asdict(finding) for finding in (*_findings(replace(chat, prompt=together)), _turns(chat), *kinds)]


def _findings(chat: ChatFormat) -> Iterator[Finding]:
    by, why = ("Arrow's kernels", "it only places contents") if chat.opacity is None else ("Jinja", chat.opacity)
    yield Finding("rendered", f"by {by}", why)
    pair = _rendered(chat, [USER, ANSWER])
    yield _stop(chat) if pair.text else Finding("stop", "refused", pair.reason)
    # the template's tokens, by their usual spelling
    lacking = [token for token in dict.fromkeys(_TOKEN.findall(pair.text)) if token not in chat.control]
    yield Finding("control tokens", LACKING + ", ".join(lacking) if lacking else KNOWN, pair.text)
    yield _bos(chat, pair.text)
    yield _prefixes(chat)
    yield _generation_prompt(chat)
    ruled = _rendered(chat, [{"role": "system", "content": RULED}, USER, ANSWER])
    system = "kept" if RULED in ruled.text else "omitted" if ruled.text else "refused"
    yield Finding("system message", system, ruled.text or ruled.reason)
    described = _rendered(chat, [USER, ANSWER], TOOLS)
    tools = "kept" if described.text else "omitted" if described.code == "tools_ignored" else "refused"
    yield Finding("tools", tools, described.text or described.reason)
    called = _rendered(chat, CALLING, TOOLS if tools == "kept" else "")
    calls = "trained" if "lookup" in called.trained else "rendered, not trained" if called.text else "refused"
    calls += "" if calls != "trained" or TOOL_CALL in called.roles else UNCOUNTED
    omitted = called.code == "tool_calls_ignored"
    yield Finding("tool calls", "omitted" if omitted else calls, called.text or called.reason)
    yield _reasoning(chat)
    yield _spaces(chat)
    yield _none_content(chat)
    dated = chat.template.reads("strftime_now") or chat.template.reads("date_string")
    frozen = f"frozen as {chat.prompt.date_string}" if chat.prompt.date_string else "not frozen"
    yield Finding("date", f"read, {frozen}" if dated else "not read", "strftime_now or date_string" if dated else "")


@dataclass(frozen=True)
class Rendered:
    """A rendered conversation: its text, the trained parts and their roles, or the message and code of its reject."""

    text: str = ""
    parts: tuple[str, ...] = ()
    roles: frozenset[str] = frozenset()
    reason: str = ""
    code: str = ""

    @property
    def trained(self) -> str:
        return "".join(self.parts)

    def stop_of(self, answer: str) -> str:
        """Return the trained text right after an answer."""
        return next((part.rpartition(answer)[2] for part in self.parts if answer in part), "")


def _rendered(chat: ChatFormat, messages: list[dict[str, Any]], tools: str = "") -> Rendered:
    out = chat.render(one_conversation(messages, tools))
    if not out.table.num_rows:
        return Rendered(reason=str(out.rejects["message"][0].as_py()), code=out.rejects["code"][0].as_py())
    row = out.table.to_pylist()[0]
    data = row["text"].encode()
    spans = [list(run) for trained, run in groupby(row["spans"], key=lambda span: span["weight"] > 0) if trained]
    roles = frozenset(SPAN_ROLES[span["role"]] for run in spans for span in run)
    parts = tuple(data[run[0]["start"] : run[-1]["end"]].decode(errors="replace") for run in spans)
    return Rendered(row["text"], parts, roles)


def notices(certificate: Sequence[dict[str, str]]) -> list[str]:
    """Return what a build reports about a certificate: a stop that is not trained or lacks EOS, and unknown tokens."""
    found = {finding["name"]: finding for finding in certificate}
    stop, control = found["stop"], found["control tokens"]
    sentences = []
    if stop["found"] == "not trained":
        sentences.append("the chat template's stop after an answer is not trained, so the model does not learn to stop")
    elif stop["found"] not in ("refused", "trained", ENDS_WITH_EOS):
        sentences.append(
            f"the stop after an answer is {stop['found']} ({stop['evidence']}): generation must stop on the last of "
            "these tokens; if it stops on EOS alone, set tokenizer.special_tokens.eos to that token"
        )
    if control["found"] != KNOWN:
        sentences.append(
            f"the chat template writes {control['found'].removeprefix(LACKING)}, for which the tokenizer has no token: "
            "that is tokenized as plain text; to add tokens, list them in tokenizer.special_tokens.additional"
        )
    return sentences


def _stop(chat: ChatFormat) -> Finding:
    """Return how answers end: the last one, and earlier ones if the template ends them differently."""
    talk = _rendered(chat, [USER, {**ANSWER, "content": EARLIER}, {**USER, "content": NEXT}, ANSWER])
    last, earlier = (talk.stop_of(said) for said in (SAID, EARLIER))
    if chat.prompt.train_on in ("last", "all") or not talk.text:
        last = earlier = _rendered(chat, [USER, ANSWER]).stop_of(SAID)
    eos = chat.tokens.get("eos_token")
    tokens = _token_list(chat, last)
    if earlier != last:
        tokens += f"; of earlier answers: {_token_list(chat, earlier) or 'none'}"
    if not last.strip():
        return Finding("stop", "not trained", tokens)
    lacking = [text for text in (last, earlier) if not text.endswith(eos or "")]
    found = ENDS_WITH_EOS if eos and not lacking else "trained"
    if eos and lacking:
        found = f"trained, {'' if last in lacking else 'in earlier answers '}without EOS {eos}"
    return Finding("stop", found, tokens)


def _token_list(chat: ChatFormat, stop: str) -> str:
    """Return a stop's control tokens and the text between them, each in quotes."""
    return " ".join(json.dumps(piece.text, ensure_ascii=False) for piece in split_control(stop, chat.control))


def _kinds(chat: ChatFormat) -> Finding:
    """Return which kinds of text the template shows, in answers without and with reasoning and tool calls."""
    train_on = {kind: float(weight) for weight, kind in enumerate(KIND_PARTS, 1)}  # all different
    chat = replace(chat, prompt=chat.prompt.model_copy(update={"train_on": train_on, "turns": "together"}))
    thinking = {**ANSWER, "reasoning_content": THOUGHTS[0]}
    inline = {**ANSWER, "content": f"{OPEN}\n{THOUGHTS[0]}\n{CLOSE}\n\n{SAID}"}
    talks = {"answers": [USER, ANSWER], "reasoning": [USER, thinking], "inline reasoning": [USER, inline]}
    found, evidence = [], []
    for name, messages in {**talks, "tool calls": CALLING}.items():
        out = chat.render(one_conversation(messages))
        rows = out.table.to_pylist()
        reasons = out.rejects["code"].to_pylist()
        spans = [(SPAN_ROLES[span["role"]], span) for row in rows for span in row["spans"] if span["weight"]]
        data = rows[0]["text"].encode() if rows else b""
        kinds = ", ".join(dict.fromkeys(kind for kind, _ in spans))
        found.append(f"{name}: {kinds or ('not told apart' if 'kind_unknown' in reasons else 'refused')}")
        texts = [(kind, data[span["start"] : span["end"]].decode()) for kind, span in spans]
        evidence += [f"{kind} {json.dumps(text, ensure_ascii=False)}" for kind, text in texts]
    return Finding("kinds", "; ".join(found), "\n".join(evidence))


def _bos(chat: ChatFormat, text: str) -> Finding:
    token = chat.tokens.get("bos_token")
    if not token or token not in text:
        return Finding("BOS", "none", text[:40])
    origin = "the template's" if chat.template.reads("bos_token") else "the tokenizer's"
    position = "" if text.startswith(token) else ", after other text"
    return Finding("BOS", f"{text.count(token)} times" if text.count(token) > 1 else origin + position, text[:40])


def _prefixes(chat: ChatFormat) -> Finding:
    whole, prefix = _rendered(chat, [USER, ANSWER] * 2), _rendered(chat, [USER, ANSWER]).text
    if not whole.text:
        return Finding("conversation begun", "refused", whole.reason)
    stable = whole.text.startswith(prefix.rstrip()) if prefix else False
    found = "not changed by later turns" if stable else "changed by later turns"
    return Finding("conversation begun", found, whole.text)


def _turns(chat: ChatFormat) -> Finding:
    """Return whether turns are trained as at inference, without and with reasoning.

    Inline reasoning counts where the generation prompt opens it.
    """
    found, evidence = list[str](), ""
    opened = (attempt(chat.written, [USER], True) or "").rstrip().endswith(OPEN)
    for kind, thoughts in (("without", (None, None)), ("with", THOUGHTS), *[("with inline", THOUGHTS)] * opened):
        messages: list[dict[str, Any]] = []
        for thought in thoughts:
            given = "" if thought is None else f"<think>\n{thought}\n</think>\n\n"
            inline = kind == "with inline"
            fields = {} if thought is None or inline else {"reasoning_content": thought}
            messages += [USER, {"role": "assistant", "content": given * inline + SAID, **fields}]
        (whole,) = group_by_shape(one_array(one_conversation(messages)["messages"]))
        try:
            shared = chat.of_shape(whole)
            (group,) = divided_by_template(whole, shared.written, shared.prompts)
            shared = chat.of_shape(group)
            texts = texts_of(shared, group) if chat.exact else [(shared, group)]
            turns = [turn for form, text in texts for turn in form.turns(text)]
        except TemplateError:
            continue
        written = (form.written(text.messages([value[0].as_py() for value in text.values])) for form, text in texts)
        evidence = "\n".join(filter(None, written))
        dropped = any(thought and thought not in evidence for thought in thoughts)
        found.append(f"{kind} reasoning: {_exactness(turns, dropped, opened and kind == 'without')}")
    return Finding("turns", "; ".join(found) or "refused", evidence)


def _exactness(turns: Sequence[TrainedTurn], dropped: bool, opened: bool) -> str:
    """Return whether turns are exact, or why not.

    Args:
        dropped: whether the template drops reasoning.
        opened: whether the generation prompt opens reasoning that the turns lack.
    """
    if all(turn.exact for turn in turns):
        return "exact"
    if any(turn.same and not turn.prompted for turn in turns):
        prompt = "the generation prompt opens a thought, which these answers lack"
        return f"not exact, {prompt if opened else 'answers do not start with the generation prompt'}"
    reason = "without their reasoning, which the template drops" if dropped else "as the template writes them there"
    return f"not exact, earlier turns are trained {reason}; set prompt_template.turns: exact"


def _spaces(chat: ChatFormat) -> Finding:
    messages = [{"role": "user", "content": f" \n{ASKED}\n "}, {"role": "assistant", "content": f" \n{SAID}\n "}]
    rendered = _rendered(chat, messages)
    if not (text := rendered.text):
        return Finding("white space around contents", "refused", rendered.reason)
    kept = [f" \n{ASKED}\n " in text, f" \n{SAID}\n " in text]
    found = {(True, True): "kept", (False, False): "trimmed", (True, False): "trimmed in answers"}
    return Finding("white space around contents", found.get((kept[0], kept[1]), "trimmed in questions"), text)


def _reasoning(chat: ChatFormat) -> Finding:
    said = [{**ANSWER, "reasoning_content": thought} for thought in THOUGHTS]
    talk = _rendered(chat, [USER, said[0], USER, said[1]])
    if not talk.text:
        return Finding("reasoning", "omitted" if talk.code == "reasoning_ignored" else "refused", talk.reason)
    which = "kept" if THOUGHTS[0] in talk.text else "kept in the last answer, omitted before"
    if THOUGHTS[1] not in talk.trained:
        which += ", not trained"
    elif REASONING not in talk.roles:
        which += UNCOUNTED
    return Finding("reasoning", which, talk.text)


def _generation_prompt(chat: ChatFormat) -> Finding:
    try:
        without, prompted = (chat.written([USER], prompted) for prompted in (False, True))
        whole = chat.written([USER, ANSWER], False)
    except TemplateError as error:
        return Finding("generation prompt", "refused", str(error))
    if prompted == without:
        return Finding("generation prompt", "none", prompted)
    prompt = prompted.removeprefix(without) if prompted.startswith(without) else prompted
    starts = "answers start with it" if whole.startswith(prompted) else "answers do not start with it"
    return Finding("generation prompt", starts, prompt)


def ends_before_space(chat: ChatFormat) -> bool:
    """Return whether the prompt of inference ends before white space that rows have before an answer."""
    with suppress(TemplateError):
        prompt, whole = chat.written([USER], True), chat.written([USER, ANSWER], False)
        gap = whole.removeprefix(prompt).partition(SAID)[0]
        return whole.startswith(prompt) and gap.isspace() and not prompt[-1:].isspace()
    return False


def _none_content(chat: ChatFormat) -> Finding:
    try:
        text = chat.written([USER, {"role": "assistant", "content": None}], False)
    except TemplateError as error:
        return Finding("content None", "refused", str(error))
    return Finding("content None", "written as None" if "None" in text else "written as empty", text)
