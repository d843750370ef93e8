"""The certificate of a chat template: what it does with a few test conversations, each finding with its evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from tokenloom.assets.columns.forms import MESSAGES
from tokenloom.assets.prompts.chat import ChatFormat
from tokenloom.assets.prompts.conversations import group_by_shape
from tokenloom.assets.prompts.exact_turns import TrainedTurn, texts_of
from tokenloom.assets.stage.rejects import ROW
from tokenloom.errors import TemplateError

ASKED, SAID, RULED = "QUESTION", "ANSWER", "RULE"
THOUGHTS = "THOUGHT", "CONCLUSION"
CALL = {"id": None, "name": "lookup", "arguments": '{"word": "x"}'}
RESULT = {"role": "tool", "content": "RESULT", "name": "lookup"}
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
    together = chat.prompt.model_copy(update={"turns": "together"})
    return [asdict(finding) for finding in (*_findings(replace(chat, prompt=together)), _turns(chat))]


def _findings(chat: ChatFormat) -> Iterator[Finding]:
    user, answer = {"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID}
    opacity = chat.opacity
    yield Finding(
        "rendered", "by Arrow's kernels" if opacity is None else "by Jinja", opacity or "it only places contents"
    )
    text, trained, reason, _ = _rendered(chat, [user, answer])
    yield _stop(text, trained, reason)
    yield _bos(chat, text)
    yield _prefixes(chat, user, answer)
    yield _generation_prompt(chat, user, answer)
    text, _, reason, _ = _rendered(chat, [{"role": "system", "content": RULED}, user, answer])
    system = "kept" if RULED in text else "omitted" if text else "refused"
    yield Finding("system message", system, text or reason)
    text, _, reason, code = _rendered(chat, [user, answer], TOOLS)
    tools = "kept" if text else "omitted" if code == "tools_ignored" else "refused"
    yield Finding("tools", tools, text or reason)
    messages = [user, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT, answer]
    text, trained, reason, code = _rendered(chat, messages, TOOLS if tools == "kept" else "")
    calls = "trained" if "lookup" in trained else "rendered, not trained" if text else "refused"
    yield Finding("tool calls", "omitted" if code == "tool_calls_ignored" else calls, text or reason)
    yield _reasoning(chat, user)
    yield _spaces(chat)
    yield _none_content(chat, user)
    dated = chat.template.reads("strftime_now") or chat.template.reads("date_string")
    frozen = f"frozen as {chat.prompt.date_string}" if chat.prompt.date_string else "not frozen"
    yield Finding("date", f"read, {frozen}" if dated else "not read", "strftime_now or date_string" if dated else "")


def _rendered(chat: ChatFormat, messages: list[dict[str, Any]], tools: str = "") -> tuple[str, str, str, str]:
    """Return a conversation's text, trained text, reject message and reject code; "" for those it does not have."""
    table = pa.table({ROW: pa.array([0], pa.int32()), "messages": pa.array([messages], MESSAGES), "tools": [tools]})
    out = chat.render(table)
    if not out.table.num_rows:
        return "", "", str(out.rejects["message"][0].as_py()), out.rejects["code"][0].as_py()
    row = out.table.to_pylist()[0]
    data = row["text"].encode()
    parts = [data[span["start"] : span["end"]] for span in row["spans"] if span["weight"] > 0]
    return row["text"], b"".join(parts).decode(errors="replace"), "", ""


def _stop(text: str, trained: str, reason: str) -> Finding:
    if not text:
        return Finding("stop", "refused", reason)
    stop = trained.rpartition(SAID)[2]
    return Finding("stop", "trained" if stop.strip() else "not trained", trained)


def _bos(chat: ChatFormat, text: str) -> Finding:
    token = chat.tokens.get("bos_token")
    if not token or token not in text:
        return Finding("BOS", "none", text[:40])
    origin = "the template's" if chat.template.reads("bos_token") else "the tokenizer's"
    position = "" if text.startswith(token) else ", after other text"
    return Finding("BOS", f"{text.count(token)} times" if text.count(token) > 1 else origin + position, text[:40])


def _prefixes(chat: ChatFormat, user: dict[str, str], answer: dict[str, str]) -> Finding:
    whole, _, reason, _ = _rendered(chat, [user, answer, user, answer])
    prefix, _, _, _ = _rendered(chat, [user, answer])
    if not whole:
        return Finding("conversation begun", "refused", reason)
    stable = whole.startswith(prefix.rstrip()) if prefix else False
    return Finding("conversation begun", "not changed by later turns" if stable else "changed by later turns", whole)


def _turns(chat: ChatFormat) -> Finding:
    """Return whether turns are trained as they are at inference, without and with reasoning."""
    found: list[str] = []
    evidence = ""
    for kind, thoughts in (("without reasoning", (None, None)), ("with reasoning", THOUGHTS)):
        messages: list[dict[str, Any]] = []
        for thought in thoughts:
            messages += [{"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID}]
            messages[-1]["reasoning"] = thought
        (group,) = group_by_shape(pa.array([messages], MESSAGES), None)
        try:
            texts = texts_of(chat, group) if chat.prompt.turns == "exact" else [group]
            turns = [turn for text in texts for turn in chat.turns(text)]
        except TemplateError:
            continue
        written = [chat.written(text.messages([value[0].as_py() for value in text.values]), False) for text in texts]
        evidence = "\n".join(written)
        dropped = any(thought and thought not in evidence for thought in thoughts)
        found.append(f"{kind}: {_exactness(turns, dropped)}")
    return Finding("turns", "; ".join(found) or "refused", evidence)


def _exactness(turns: Sequence[TrainedTurn], dropped: bool) -> str:
    """Return whether turns are exact, or why not; `dropped` is whether the template drops reasoning."""
    if all(turn.exact for turn in turns):
        return "exact"
    if any(turn.same and not turn.prompted for turn in turns):
        return "not exact, answers do not start with the generation prompt"
    reason = "without their reasoning, which the template drops" if dropped else "as the template writes them there"
    return f"not exact, earlier turns are trained {reason}; set prompt_template.turns: exact"


def _spaces(chat: ChatFormat) -> Finding:
    messages = [{"role": "user", "content": f" \n{ASKED}\n "}, {"role": "assistant", "content": f" \n{SAID}\n "}]
    text, _, reason, _ = _rendered(chat, messages)
    if not text:
        return Finding("white space around contents", "refused", reason)
    kept = [f" \n{ASKED}\n " in text, f" \n{SAID}\n " in text]
    found = {(True, True): "kept", (False, False): "trimmed", (True, False): "trimmed in answers"}
    return Finding("white space around contents", found.get((kept[0], kept[1]), "trimmed in questions"), text)


def _reasoning(chat: ChatFormat, user: dict[str, str]) -> Finding:
    said = [{"role": "assistant", "content": SAID, "reasoning": thought} for thought in THOUGHTS]
    text, trained, reason, code = _rendered(chat, [user, said[0], user, said[1]])
    if not text:
        return Finding("reasoning", "omitted" if code == "reasoning_ignored" else "refused", reason)
    which = "kept" if THOUGHTS[0] in text else "kept in the last answer, omitted before"
    return Finding("reasoning", which if THOUGHTS[1] in trained else f"{which}, not trained", text)


def _generation_prompt(chat: ChatFormat, user: dict[str, str], answer: dict[str, str]) -> Finding:
    try:
        without, prompted = (chat.written([user], prompted) for prompted in (False, True))
        whole = chat.written([user, answer], False)
    except TemplateError as error:
        return Finding("generation prompt", "refused", str(error))
    if prompted == without:
        return Finding("generation prompt", "none", prompted)
    prompt = prompted.removeprefix(without) if prompted.startswith(without) else prompted
    starts = "answers start with it" if whole.startswith(prompted) else "answers do not start with it"
    return Finding("generation prompt", starts, prompt)


def _none_content(chat: ChatFormat, user: dict[str, str]) -> Finding:
    try:
        text = chat.written([user, {"role": "assistant", "content": None}], False)
    except TemplateError as error:
        return Finding("content None", "refused", str(error))
    return Finding("content None", "written as None" if "None" in text else "written as empty", text)
