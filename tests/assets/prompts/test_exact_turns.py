"""Exact turns: every trained turn in the context of inference, under every template that rewrites earlier turns.

The oracle is `apply_chat_template` of `transformers`: the conversation before a turn with the generation prompt, and
the conversation up to the turn. Templates are those that TRL ships.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from support.columns_stage import canonical
from support.rendered_prompts import assert_partition, trained_parts
from support.soak import SOAK
from tokenloom.assets.prompts.chat import ChatFormat
from tokenloom.assets.prompts.exact import NOT_EXACT, TEXTS, TURNS
from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig, PromptTemplateConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.templates.jinja import JinjaTemplate
from tokenloom.resources.tokenizers import TokenizerSpec

Row = dict[str, Any]
DATE = "2024-07-26"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
CONTROL = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|channel|>", "<|message|>", "<|turn>", "<turn|>"),
    *("<|user|>", "<|assistant|>", "<|system|>", "<|observation|>", "<|eot|>", "<|eom|>"),
)
LOOKUP = [{"type": "function", "function": {"name": "lookup", "description": "", "parameters": {"type": "object"}}}]
KNOWN = {"qwen3", "glm4moe", "gptoss", "gptoss_training", "lfm2_2_5", "gemma4_v5", "nemotron_3_nano", "qwen3_5_think"}
KNOWN |= {"deepseek_r1_distill", "deepseekv3", "diffusion_gemma", "gemma4"}
"""Some of the templates that drop reasoning."""


def user(content: str) -> Row:
    return {"role": "user", "content": content}


def answer(content: str, thought: str | None = None, **more: Any) -> Row:
    said = {"role": "assistant", "content": content, **more}
    return said if thought is None else said | dict.fromkeys(("reasoning_content", "reasoning", "thinking"), thought)


def called(word: str, thought: str) -> list[Row]:
    function = {"name": "lookup", "arguments": {"word": word}}
    calls = [{"type": "function", "id": "call12345", "function": function}]
    return [
        answer("", thought, tool_calls=calls),
        {"role": "tool", "content": f"{word}: found", "name": "lookup", "tool_call_id": "call12345"},
    ]


def conversations() -> list[list[Row]]:
    first, second, third = user("Who?"), user("Why so?"), user("  When?\n")
    return [
        [first, answer("Me.", "An easy one."), second, answer("Because.", "Harder."), third, answer("Now.", "Ah.")],
        [{"role": "system", "content": "Rule."}, first, answer("Me.", "So."), second, answer("Why not?", "Hm.")],
        [first, answer("Me.", "So."), second],
        [first, answer("Me."), second, answer("Because.", "Only here."), third],
        [first, answer("Me.", "So."), second, answer("Because."), third, answer("Now.", "Late.")],
        [first, answer("Me."), second, answer("Because.")],
        [first, answer("Only me.", "One turn.")],
        [first, *called("a", "I look it up."), answer("A is.", "It says so."), second, answer("So it is.", "Yes.")],
        [
            first,
            *called("a", "Look."),
            *called("b", "Look again."),
            answer("Both.", "Found."),
            second,
            answer("So.", "Y"),
        ],
    ]


def glaive(real_data: Path, count: int) -> list[list[Row]]:
    """Real conversations; the reasoning of each answer is derived from the question before it."""
    records = json.loads((real_data / "chat" / "glaive_toolcall_en_demo.json").read_text(encoding="utf-8"))
    talks = []
    for record in records:
        talk, asked = [], ""
        for turn in record["conversations"]:
            if turn["from"] == "human":
                asked = turn["value"]
                talk.append(user(asked))
            elif turn["from"] == "gpt":
                talk.append(answer(turn["value"], f"The user says: {asked[:40]}"))
        if sum(turn["role"] == "assistant" for turn in talk) > 1 and talk[0]["role"] == "user":
            talks.append(talk)
    assert len(talks) > count
    return talks[:count]


@cache
def templates() -> dict[str, str]:
    """Return the templates that TRL ships. Those of the real data drop no reasoning."""
    spec = find_spec("trl")
    if spec is None or spec.origin is None:
        pytest.skip("needs the chat templates that TRL ships")
    folder = Path(spec.origin).parent / "chat_templates"
    return {path.stem: path.read_text() for path in folder.glob("*.jinja")}


def oracle(template: str, messages: list[Row], prompted: bool, tools: Any, **more: Any) -> str:
    template = re.sub(r"strftime_now\([^)]*\)", repr(DATE), template)
    given: dict[str, Any] = {"chat_template": template, "add_generation_prompt": prompted, **TOKENS, **more}
    return render_jinja_template([messages], tools=tools, date_string=DATE, **given)[0][0]


def inline(talk: list[Row]) -> list[Row]:
    """Return a conversation with the reasoning of answers in their contents."""
    fields = ("reasoning_content", "reasoning", "thinking")
    return [
        {name: value for name, value in turn.items() if name not in fields}
        | ({"content": f"<think>\n{turn['thinking']}\n</think>\n\n{turn['content']}"} if "thinking" in turn else {})
        for turn in talk
    ]


def of_calls(talk: list[Row]) -> list[Row]:
    """Return a conversation in which only tool calls have reasoning."""
    return [turn if "tool_calls" in turn else plain for turn, plain in zip(talk, without_thoughts(talk), strict=True)]


def without_thoughts(talk: list[Row]) -> list[Row]:
    fields = ("reasoning_content", "reasoning", "thinking")
    return [{name: value for name, value in turn.items() if name not in fields} for turn in talk]


@cache
def dropping() -> dict[str, list[str]]:
    """Return the templates that drop reasoning, each with the kinds of reasoning that they drop."""
    first, second = user("a"), user("c")
    talk = [first, answer("SAID", "EARLY"), second, answer("d", "LATE")]
    calls = [first, *called("b", "EARLY"), answer("SAID"), second, *called("d", "LATE")]
    found: dict[str, list[str]] = {}
    for name, template in templates().items():
        for kind, rows, tools in (("field", talk, None), ("inline", inline(talk), None), ("calls", calls, LOOKUP)):
            try:
                text = oracle(template, rows, False, tools)
            except (TemplateError, TypeError):
                continue
            if "SAID" in text and "EARLY" not in text and ("LATE" in text or kind == "inline"):
                found.setdefault(name, []).append(kind)
    return found


def chat(template: str, turns: str, **prompt: Any) -> ChatFormat:
    settings = PromptTemplateConfig(format_type="chat", date_string=DATE, **{"turns": turns, **prompt})
    return ChatFormat(JinjaTemplate(template, DATE), settings, TOKENS, CONTROL, None, "</s>")


def render(
    template: str, talks: list[list[Row]], turns: str = "exact", tools: Any = LOOKUP, **prompt: Any
) -> ChunkOutput:
    described = [json.dumps(tools) if any("tool_calls" in turn for turn in talk) else "" for talk in talks]
    rows = [{"messages": talk, "tools": found} for talk, found in zip(talks, described, strict=True)]
    table = canonical(rows).table
    table = table.set_column(table.schema.get_field_index(ROW), ROW, pa.array(range(len(rows)), pa.int32()))
    out = chat(template, turns, **prompt).render(table)
    for made in out.table.to_pylist():
        assert_partition(made["text"], made["spans"])
    positions = out.table[ROW].to_pylist()
    rejected = out.rejects[ROW].to_pylist()
    assert positions == sorted(positions) and len(set(rejected)) == len(rejected) and not {*positions} & {*rejected}
    assert out.rows_in == len(talks) == len({*positions}) + len(rejected)
    assert out.counts()["rows_out"] == len({*positions})
    return out


def trained_turns(text: str, spans: list[Row]) -> list[tuple[str, str]]:
    """Return the text before each run of trained bytes, and the run."""
    data, found, end = text.encode(), [], -1
    for span in spans:
        if span["weight"] > 0:
            start = found.pop()[0] if span["start"] == end else span["start"]
            end = span["end"]
            found.append((start, end))
    return [(data[:start].decode(), data[start:end].decode()) for start, end in found]


def prompts_before(template: str, talk: list[Row], index: int, tools: Any, **more: Any) -> list[str]:
    """Return what inference can prompt with before a message."""
    thinking: list[Row] = [{}] if more else [{}, {"enable_thinking": True}, {"enable_thinking": False}]
    return [oracle(template, talk[:index], True, tools, **{**more, **variant}) for variant in thinking]


def is_turn(before: str, part: str, prompt: str, own: str, said: Row, stop: str) -> bool:
    """Whether a trained part is what inference generates for a message after a prompt.

    Args:
        own: the conversation up to the message, as the template writes it.
        stop: the stop of a turn that the template does not end.
    """
    text = before + part
    generated = text[len(prompt) :].rstrip()
    if not text.startswith(prompt) or before[len(prompt) :].strip():
        return False
    whole = said["content"].removeprefix("<think>").lstrip("\n").rstrip()
    ends = [own.rstrip(), own.rstrip() + stop]
    written = any(end.endswith(generated) or generated in end[-len(generated) - 40 :] for end in ends)
    if not written and not ("</think>" in whole and generated.startswith(whole) and own.endswith(generated[-10:])):
        return False
    names = [call["function"]["name"] for call in said.get("tool_calls", ())]
    content = said["content"].rpartition("</think>")[2]
    return all(expected.strip() in generated for expected in (content, said.get("thinking") or "", *names))


def assert_exact(template: str, talk: list[Row], texts: list[Row], **more: Any) -> None:
    """Check that each answer is trained once, right after what inference prompts with, up to the end of its turn."""
    found = [turn for row in texts for turn in trained_turns(row["text"], row["spans"])]
    tools = LOOKUP if any("tool_calls" in turn for turn in talk) else None
    answers = [index for index, turn in enumerate(talk) if turn["role"] == "assistant"]
    for index in answers:
        own = oracle(template, talk[: index + 1], False, tools, **more)
        prompts = prompts_before(template, talk, index, tools, **more)
        following = talk[index + 1]["role"] if index + 1 < len(talk) and "<|observation|>" in template else ""
        stop = {"tool": "<|observation|>", "user": "<|user|>"}.get(following, "</s>")
        (turn,) = {turn for turn in found if any(is_turn(*turn, prompt, own, talk[index], stop) for prompt in prompts)}
        found.remove(turn)
    assert not found


def test_the_templates_that_drop_reasoning_are_known() -> None:
    assert {*dropping()} >= KNOWN


@pytest.mark.parametrize("part", range(4))
def test_every_turn_is_trained_once_in_the_context_of_inference(part: int) -> None:
    """Under every template that drops reasoning, with each kind of reasoning that it drops."""
    for name, kinds in sorted(dropping().items())[part::4]:
        template, talks = templates()[name], conversations()
        thoughtful = [talk for talk in talks if all("thinking" in turn for turn in talk if turn["role"] == "assistant")]
        sets = {
            "field": talks if SOAK else [talks[8]],
            "inline": [inline(talk) for talk in thoughtful[: 4 if SOAK else 1]],
            "calls": [of_calls(talk) for talk in (talks[7:] if SOAK else [talks[8]])],
        }
        for kind in kinds:
            exact = render(template, sets[kind])
            assert not exact.rejects.num_rows, (name, kind, exact.rejects["message"].to_pylist())
            assert exact.counters[NOT_EXACT] == 0, (name, kind)
            for number, talk in enumerate(sets[kind]):
                assert_exact(template, talk, [row for row in exact.table.to_pylist() if row[ROW] == number])


def test_real_conversations_are_exact(real_data: Path) -> None:
    talks = glaive(real_data, 60)
    for name in ("qwen3", "gptoss", "nemotron_3_nano"):
        out = render(templates()[name], talks)
        assert not out.rejects.num_rows
        assert out.counters[NOT_EXACT] == 0
        assert out.counters[TURNS] == sum(turn["role"] == "assistant" for talk in talks for turn in talk)
        kept = out.table.to_pylist()
        for number, talk in enumerate(talks):
            assert_exact(templates()[name], talk, [row for row in kept if row[ROW] == number])


def test_inline_reasoning_is_exact_too() -> None:
    """Qwen3's template takes `<think>` out of contents, and drops it from earlier answers."""
    talks = [talk for talk in conversations() if not any("tool_calls" in turn for turn in talk)]
    inline = [
        [
            answer(f"<think>\n{turn['thinking']}\n</think>\n\n{turn['content']}") if "thinking" in turn else turn
            for turn in talk
        ]
        for talk in talks
    ]
    template = templates()["qwen3"]
    out = render(template, inline)
    assert not out.rejects.num_rows
    assert out.counters[NOT_EXACT] == 0
    for number, talk in enumerate(inline):
        assert_exact(template, talk, [row for row in out.table.to_pylist() if row[ROW] == number])
    assert out.table["text"].to_pylist() == render(template, talks).table["text"].to_pylist()


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LAST_ONLY = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.thinking and loop.last %}{{ '<think>' + m.thinking + '</think>' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def parts_of(out: ChunkOutput) -> list[tuple[int, str, list[str]]]:
    return [(row[ROW], row["text"], trained_parts(row["text"], row["spans"])) for row in out.table.to_pylist()]


def test_turns_that_are_exact_together_stay_together() -> None:
    talks = [[user("a"), answer("b"), user("c"), answer("d"), user("e")], [user("f"), answer("g")]]
    together, exact = (render(CHATML, talks, turns) for turns in ("together", "exact"))
    assert exact.table.equals(together.table)
    assert exact.counters == together.counters == {NOT_EXACT: 0, TURNS: 3, TEXTS: 2}


def test_turns_with_one_beginning_share_a_text() -> None:
    """The answer after a call starts with the call; the question after both drops their thoughts."""
    talk = [user("Who?"), *called("a", "Look."), answer("A.", "Said."), user("Why?"), answer("So.", "Last.")]
    out = render(templates()["qwen3"], [talk])
    assert [len(parts) for _, _, parts in parts_of(out)] == [2, 1]


def test_each_text_ends_with_the_turn_that_it_is_for() -> None:
    talk = [user("a"), answer("b", "1"), user("c"), answer("d", "2"), user("e")]
    out = render(LAST_ONLY, [talk])
    head = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    first, second = "<think>1</think>b<|im_end|>", "<think>2</think>d<|im_end|>"
    next_question = "b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    assert parts_of(out) == [
        (0, f"{head}{first}\n", [first]),
        (0, f"{head}{next_question}{second}\n", [second]),
    ]


def test_weights_of_the_row_hold_in_every_text() -> None:
    talk = [user("a"), answer("b", "1", weight=0), user("c"), answer("d", "2", weight=0.5), user("e"), answer("f", "3")]
    out = render(LAST_ONLY, [talk])
    weighted = [{span["weight"] for span in spans} for spans in out.table["spans"].to_pylist()]
    assert weighted == [{0.0, 0.5}, {0.0, 1.0}]
    assert out.counters[TURNS] == 2


def test_only_the_last_answer_is_trained_if_the_yaml_says_so() -> None:
    talk = [user("a"), answer("b", "1"), user("c"), answer("d", "2"), user("e")]
    out = render(LAST_ONLY, [talk], train_on="last")
    assert [parts for _, _, parts in parts_of(out)] == [["<think>2</think>d<|im_end|>"]]


def test_a_prompt_that_answers_do_not_start_with_is_counted_and_its_text_kept() -> None:
    template = CHATML.replace("assistant\n' }}{% endif", "assistant\n<think>' }}{% endif")
    talks = [[user("a"), answer("b"), user("c"), answer("d")]]
    together, exact = (render(template, talks, turns) for turns in ("together", "exact"))
    assert exact.table.equals(together.table)
    assert exact.counters == together.counters
    assert exact.counters[NOT_EXACT] == exact.counters[TURNS] == 2


@pytest.mark.parametrize("opening", [[], [user("p")]])
def test_both_marked_parts_of_an_answer_are_its_own_also_if_it_opens_the_conversation(opening: list[Row]) -> None:
    """The prompt ends before `<a>`, which is not trained: no turn is exact."""
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ '<u>' + m.content }}{% else %}{{ '<a>' }}"
        "{% generation %}{{ m.thinking }}{% endgeneration %}{{ '</think>' }}"
        "{% generation %}{{ '\n' + m.content + '</a>' }}{% endgeneration %}{% endif %}{% endfor %}"
    )
    out = render(template, [[*opening, answer("A", "x"), user("q"), answer("B", "y")]], "together")
    assert out.counters == {TURNS: 2, NOT_EXACT: 2, TEXTS: 1}


def test_an_eos_that_only_the_last_answer_gets_makes_the_others_inexact() -> None:
    template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    template += "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    talks = [[user("a"), answer("b"), user("c"), answer("d")]]
    together, exact = (render(template, talks, turns) for turns in ("together", "exact"))
    assert together.counters[NOT_EXACT] == 1
    assert exact.counters[NOT_EXACT] == 0
    assert [parts for _, _, parts in parts_of(exact)] == [["b</s>"], ["d</s>"]]


def test_a_template_that_trims_only_earlier_answers_is_noticed() -> None:
    template = CHATML.replace(
        "m.content", "(m.content | trim if m.role == 'assistant' and not loop.last else m.content)"
    )
    talks = [[user("a"), answer(" b "), user("c"), answer("d")]]
    assert render(template, talks, "together").counters[NOT_EXACT] == 1
    assert [parts for _, _, parts in parts_of(render(template, talks))] == [[" b <|im_end|>"], ["d<|im_end|>"]]


def test_a_row_is_rejected_once_and_whole() -> None:
    refusing = LAST_ONLY.replace(
        "{% for", "{% if messages | length == 2 %}{{ raise_exception('short') }}{% endif %}{% for"
    )
    talks = [
        [user("a"), answer("b", "1"), user("c"), answer("d", "2"), user("e"), answer("f", "3")],
        [user("g"), answer("h")],
    ]
    out = render(refusing, [*talks, talks[0]])
    assert out.rejects[ROW].to_pylist() == [1]
    assert set(out.table[ROW].to_pylist()) == {0, 2}
    assert out.counters == {TURNS: 6, NOT_EXACT: 2, TEXTS: 4}  # the first turn has no text of its own


def test_texts_do_not_depend_on_neighbours() -> None:
    talks = conversations()
    template = templates()["qwen3"]
    whole = render(template, talks)
    for number, talk in enumerate(talks):
        alone = render(template, [talk]).table.drop_columns([ROW])
        assert alone.equals(whole.table.filter(pc.equal(whole.table[ROW], number)).drop_columns([ROW]).combine_chunks())


@pytest.mark.parametrize(
    ("prompt", "form", "length"),
    [
        ({"format_type": "custom", "template": "{a}{b}", "label_column": "b"}, "fields", {}),
        ({"format_type": "completion"}, "completion", {}),
        ({"format_type": "preference"}, "preference", {}),
        ({"format_type": "kto"}, "kto", {}),
        ({"format_type": "chat", "train_on": "all"}, "messages", {}),
        ({"format_type": "chat", "train_on": ["user"]}, "messages", {}),
        ({"format_type": "chat"}, "messages", {"strategy": "drop_turns"}),
    ],
)
def test_exact_is_refused_where_it_has_no_meaning(prompt: Row, form: str, length: Row) -> None:
    sections = {"dataset": {"name": "x"}, "prompt_template": {"turns": "exact", **prompt}, "length": length}
    spec = TokenizerSpec({}, "<s>", "</s>", None, None, CONTROL, CHATML, "<s>")
    mapping = {"form": form, "roles": {"a": "a", "b": "b"}, "answer": "b"}
    with pytest.raises(ConfigError, match=r"prompt_template\.turns"):
        renderer(PipelineConfig.from_mapping(sections), mapping, spec)


def test_a_call_keeps_its_reasoning_in_the_context_of_the_answer() -> None:
    """As in gpt-oss's prompt, while the template drops it from the conversation with the answer."""
    talk = [user("Who?"), *called("a", "LOOK"), answer("A.", "SAID")]
    out = render(templates()["gptoss"], [talk])
    ((_, text, parts),) = parts_of(out)
    assert "LOOK" not in oracle(templates()["gptoss"], talk, False, LOOKUP)
    assert text.startswith(oracle(templates()["gptoss"], talk[:3], True, LOOKUP))
    assert parts[0].startswith("<|channel|>analysis<|message|>LOOK<|end|>")
    assert (
        parts[1] == "<|channel|>analysis<|message|>SAID<|end|><|start|>assistant<|channel|>final<|message|>A.<|return|>"
    )


def test_words_beside_a_call_are_trained_where_inference_writes_them() -> None:
    call = {**called("a", "")[0], "content": "WORDS"}
    talk = [user("Who?"), without_thoughts([call])[0], called("a", "")[1], answer("A."), user("Why?"), answer("So.")]
    together, exact = (render(templates()["gptoss"], [talk], turns) for turns in ("together", "exact"))
    assert together.rejects["code"].to_pylist() == ["content_dropped"]
    assert "turns: exact" in together.rejects["message"][0].as_py()
    assert exact.counters[NOT_EXACT] == 0
    assert "".join(part for _, _, parts in parts_of(exact) for part in parts).count("WORDS") == 1
    assert_exact(templates()["gptoss"], talk, exact.table.to_pylist())


@pytest.mark.parametrize("content", ["<think>\nT\n</think>\n\nA", "<think>T</think>A", "T\n</think>\n\nA"])
def test_a_thought_that_the_prompt_opens_is_trained_with_the_answer(content: str) -> None:
    """The prompt gives `<think>`; all text after it is the row's own."""
    out = render(templates()["deepseek_r1_distill"], [[user("Q"), answer(content), user("R"), answer(content)]])
    generated = content.removeprefix("<think>").lstrip("\n") + "<｜end▁of▁sentence｜>"
    visible = content.partition("</think>")[2]
    first = "<s><｜User｜>Q<｜Assistant｜>"
    assert parts_of(out) == [
        (0, f"{first}<think>\n{generated}", [generated]),
        (0, f"{first}{visible}<｜end▁of▁sentence｜><｜User｜>R<｜Assistant｜><think>\n{generated}", [generated]),
    ]
    assert out.counters[NOT_EXACT] == 0


def test_answers_without_the_thought_that_the_prompt_opens_are_counted() -> None:
    talk = [user("Q"), answer("A"), user("R"), answer("<think>\nT\n</think>\n\nB")]
    out = render(templates()["deepseekv3"], [talk])
    assert out.counters == {TURNS: 2, NOT_EXACT: 1, TEXTS: 2}


def test_reasoning_in_a_field_that_the_template_ignores_is_refused_with_the_remedy() -> None:
    out = render(templates()["deepseekv3"], [[user("Q"), answer("A", "T")]])
    assert out.rejects["code"].to_pylist() == ["reasoning_ignored"]
    assert "into the content" in out.rejects["message"][0].as_py()


@pytest.mark.parametrize("thinking", [True, False])
def test_a_header_that_is_not_prompted_is_trained_or_given(thinking: bool) -> None:
    talk = [user("Who?"), *called("a", "LOOK"), answer("A.", "SAID")]
    template, more = templates()["diffusion_gemma"], {"enable_thinking": thinking}
    out = render(template, [talk], template_kwargs=more)
    ((_, text, parts),) = [found for found in parts_of(out) if "SAID" in found[1]]
    prompt = oracle(template, talk[:3], True, LOOKUP, **more)
    assert text.startswith(prompt)
    header = "" if thinking else "<|turn>model\n<|channel>thought\n"
    assert parts[-1] == f"{header}SAID\n<channel|>A.<turn|>"
    assert_exact(template, talk, out.table.to_pylist(), **more)
