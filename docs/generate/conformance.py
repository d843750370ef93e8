"""Write docs/prepare/conformance.md: how rows of every common dataset type are read, and what is trained.

Part of `make docs`. The comparison with TRL's trainers needs the real files in $TOKENLOOM_REAL_DATA.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tokenloom.assets.building.build import Build
from tokenloom.assets.schema.candidates import FormatCandidate, choose
from tokenloom.config import PipelineConfig
from tokenloom.errors import TokenloomError
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "prepare" / "conformance.md"
sys.path.append(str(ROOT / "tests"))

Row = dict[str, Any]

CHAT = """\
{%- if tools %}<|im_start|>tools
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""ChatML with tools and tool calls, short enough to print."""

SAID = (
    ("What is the capital of France?", "Paris.", "I do not know."),
    ("How many legs does a spider have?", "Eight.", "Six, as all insects."),
    ("Name a primary colour.", "Red is one.", "Brown."),
    ("What do bees make?", "Honey, and wax.", "Milk."),
    ("Which planet is closest to the sun?", "Mercury.", "Pluto, of course."),
    ("What is 7 times 8?", "56", "54, I think."),
)
"""Questions with a better and a worse answer."""

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}


@dataclass(frozen=True)
class Shape:
    """A dataset type.

    Args:
        name: what its documentation calls it.
        row: a row from a question, its better and its worse answer.
        settings: sections of the YAML that it needs; without any, rows are read as they are.
        rule: what the project that documents the type trains, with the source, where it is not run here.
    """

    name: str
    row: Callable[[str, str, str], Any]
    settings: Row = field(default_factory=dict)
    rule: str = ""


def user(text: str, **more: Any) -> Row:
    return {"role": "user", "content": text, **more}


def answer(text: str, **more: Any) -> Row:
    return {"role": "assistant", "content": text, **more}


def turn(speaker: str, text: str) -> Row:
    return {"from": speaker, "value": text}


def called(text: str, arguments: Any) -> list[Row]:
    """Return a call and its result in OpenAI's form."""
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
    return [
        answer("", tool_calls=[call]),
        {"role": "tool", "tool_call_id": "call_1", "content": text},
    ]


LAST = {"prompt_template": {"train_on": "last"}}
PROMPTS = {"prompt_template": {"format_type": "prompt_only"}}

HISTORY_RULE = (
    "LLaMA-Factory makes a user and an assistant message of each pair and trains all answers, only the last one with "
    "`mask_history: true` (`AlpacaDatasetConverter` in `src/llamafactory/data/converter.py`, "
    "`SupervisedDatasetProcessor` in `src/llamafactory/data/processor/supervised.py`). It joins `instruction` and "
    "`input` by one line break, tokenloom by a blank line."
)
SEGMENTS_RULE = (
    "axolotl tokenizes each segment alone, adds no token, and trains the segments with a true label "
    "(`RawInputOutputStrategy` in `src/axolotl/prompt_strategies/input_output.py`). tokenloom tokenizes the text "
    "between control tokens as one: ids differ only where a token spans two segments. Such a token is trained if one "
    "of them is, and the build counts it."
)

FAMILIES: dict[str, list[Shape]] = {
    "TRL": [
        Shape("Language modeling, standard", lambda q, a, b: {"text": f"{q} {a}"}),
        Shape("Language modeling, conversational", lambda q, a, b: {"messages": [user(q), answer(a)]}),
        Shape(
            "Language modeling, conversational, with the prompt repeated",
            lambda q, a, b: {"prompt": q, "messages": [user(q), answer(a)]},
        ),
        Shape(
            "Language modeling, with tools",
            lambda q, a, b: {"messages": [user(q), *called(a, {"text": q}), answer(a)], "tools": [TOOL]},
        ),
        Shape("Prompt-only, standard", lambda q, a, b: {"prompt": q}, PROMPTS),
        Shape("Prompt-only, conversational", lambda q, a, b: {"prompt": [user(q)]}, PROMPTS),
        Shape("Prompt-completion, standard", lambda q, a, b: {"prompt": f"{q} ", "completion": a}),
        Shape("Prompt-completion, conversational", lambda q, a, b: {"prompt": [user(q)], "completion": [answer(a)]}),
        Shape("Preference, standard", lambda q, a, b: {"prompt": q, "chosen": a, "rejected": b}),
        Shape(
            "Preference, conversational",
            lambda q, a, b: {"prompt": [user(q)], "chosen": [answer(a)], "rejected": [answer(b)]},
        ),
        Shape(
            "Preference, implicit prompt",
            lambda q, a, b: {"chosen": [user(q), answer(a)], "rejected": [user(q), answer(b)]},
        ),
        Shape("Unpaired preference, standard", lambda q, a, b: {"prompt": q, "completion": a, "label": len(a) < 8}),
        Shape(
            "Unpaired preference, conversational",
            lambda q, a, b: {"prompt": [user(q)], "completion": [answer(a)], "label": len(a) < 8},
        ),
        Shape(
            "Stepwise supervision",
            lambda q, a, b: {"prompt": q, "completions": [b, a], "labels": [False, True]},
        ),
    ],
    "LLaMA-Factory": [
        Shape("alpaca", lambda q, a, b: {"instruction": q, "input": "", "output": a, "system": "Be brief."}),
        Shape(
            "alpaca, earlier turns",
            lambda q, a, b: {"instruction": q, "input": "", "output": a, "history": [["Hello", "Hi"]]},
            rule=HISTORY_RULE,
        ),
        Shape(
            "alpaca, earlier turns, `mask_history`",
            lambda q, a, b: {"instruction": q, "input": "", "output": a, "history": [["Hello", "Hi"]]},
            LAST,
        ),
        Shape("alpaca, pre-training", lambda q, a, b: {"text": f"{q} {a}"}),
        Shape("alpaca, preference", lambda q, a, b: {"instruction": q, "input": "", "chosen": a, "rejected": b}),
        Shape("alpaca, KTO", lambda q, a, b: {"instruction": q, "input": "", "output": a, "kto_tag": len(a) < 8}),
        Shape(
            "sharegpt",
            lambda q, a, b: {
                "conversations": [
                    turn("human", q),
                    turn("function_call", json.dumps({"name": "look_up", "arguments": {"text": q}})),
                    turn("observation", a),
                    turn("gpt", a),
                ],
                "system": "Be brief.",
                "tools": json.dumps([TOOL["function"]]),
            },
        ),
        Shape(
            "sharegpt, preference",
            lambda q, a, b: {"conversations": [turn("human", q)], "chosen": turn("gpt", a), "rejected": turn("gpt", b)},
        ),
        Shape(
            "sharegpt, KTO",
            lambda q, a, b: {"conversations": [turn("human", q), turn("gpt", a)], "kto_tag": len(a) < 8},
        ),
        Shape("openai", lambda q, a, b: {"messages": [user(q), answer(a)]}),
    ],
    "axolotl": [
        Shape("completion", lambda q, a, b: {"text": f"{q} {a}"}),
        Shape("alpaca", lambda q, a, b: {"instruction": q, "input": "", "output": a}),
        Shape("gpteacher", lambda q, a, b: {"instruction": q, "input": "", "response": a}),
        Shape("alpaca_chat.load_qa", lambda q, a, b: {"question": q, "answer": a}),
        Shape("context_qa", lambda q, a, b: {"article": f"It is known: {a}", "question": q, "answer": a}),
        Shape("summarizetldr", lambda q, a, b: {"article": f"{q} {b} {a}", "summary": a}),
        Shape(
            "chat_template, `train` per message",
            lambda q, a, b: {"messages": [user(q), answer(b, train=False), user("Sure?"), answer(a, train=True)]},
        ),
        Shape(
            "input_output",
            lambda q, a, b: {"segments": [{"label": False, "text": f"{q}\n"}, {"label": True, "text": f"{a}</s>"}]},
            rule=SEGMENTS_RULE,
        ),
        Shape(
            "chat_template.default, preference",
            lambda q, a, b: {"messages": [user(q)], "chosen": answer(a), "rejected": answer(b)},
        ),
        Shape("chatml.intel", lambda q, a, b: {"system": "Be brief.", "question": q, "chosen": a, "rejected": b}),
        Shape(
            "chatml.argilla",
            lambda q, a, b: {"instruction": q, "chosen_response": a, "rejected_response": b},
        ),
        Shape("chatml.icr", lambda q, a, b: {"input": q, "chosen": a, "rejected": b}),
        Shape(
            "chatml.ultra",
            lambda q, a, b: {"prompt": q, "chosen": [user(q), answer(a)], "rejected": [user(q), answer(b)]},
        ),
        Shape("KTO, chatml.argilla", lambda q, a, b: {"instruction": q, "completion": a, "label": len(a) < 8}),
        Shape(
            "Stepwise supervision",
            lambda q, a, b: {"prompt": q, "completions": [b, a], "labels": [False, True]},
        ),
    ],
    "OpenAI": [
        Shape(
            "Chat, `weight` per message",
            lambda q, a, b: {"messages": [user(q), answer(b, weight=0), user("Sure?"), answer(a, weight=1)]},
        ),
        Shape(
            "Chat, tools",
            lambda q, a, b: {
                "messages": [user(q), *called(a, json.dumps({"text": q})), answer(a)],
                "tools": [TOOL],
                "parallel_tool_calls": False,
            },
        ),
        Shape(
            "Chat, functions",
            lambda q, a, b: {
                "messages": [
                    user(q),
                    answer("", function_call={"name": "look_up", "arguments": json.dumps({"text": q})}),
                    {"role": "function", "name": "look_up", "content": a},
                    answer(a),
                ],
                "functions": [TOOL["function"]],
            },
        ),
        Shape("Completions", lambda q, a, b: {"prompt": f"{q}\n\n###\n\n", "completion": f" {a} END"}),
        Shape(
            "Preference",
            lambda q, a, b: {
                "input": {"messages": [user(q)], "tools": [], "parallel_tool_calls": True},
                "preferred_output": [answer(a)],
                "non_preferred_output": [answer(b)],
            },
        ),
        Shape("Reinforcement", lambda q, a, b: {"messages": [user(q)], "reference_answer": a}, PROMPTS),
    ],
}

HEAD = """# Conformance

How rows of the dataset types of TRL, LLaMA-Factory, axolotl and OpenAI are read, and what is trained.

```bash
TOKENLOOM_REAL_DATA=data python docs/generate/conformance.py   # writes this page
```

For each type: the format and roles that tokenloom detects, a row, and the text that is rendered from it. ⟦…⟧ is
trained, ⏎ is a line break. The chat template is ChatML, the EOS token is `</s>`. Rows are read without settings unless
*Settings* shows some.
"""

TRL_TITLE = "\n## Compared with TRL\n"
TRL_HEAD = """
Token ids and labels of {count} rows per type, compared with those that TRL's trainers prepare. The rows are real
(WikiText-2, GSM8K, Glaive, FastChat, HH-RLHF), converted to each type by `tests/support/trl_rows.py`. The tokenizer is
phi-2's with ChatML's control tokens; chat templates are those that TRL ships. *contents* is a template that writes
contents alone, because TRL renders texts without a chat template. Stepwise supervision is refused, see above.

| type | trainer | chat template | `prompt_template` | equal | different |
|---|---|---|---|---:|---|
"""


def page(data: Path | None) -> str:
    """Return the page; without real files, the comparison is that of the current page."""
    return examples() + (comparison(data) if data else PAGE.read_text(encoding="utf-8").partition(TRL_TITLE)[2])


def examples() -> str:
    """Return the part of the page that needs no real files."""
    parts = [HEAD]
    with tempfile.TemporaryDirectory(prefix="tokenloom-docs-") as folder:
        for family, shapes in FAMILIES.items():
            parts += [f"\n## {family}\n", *(section(shape, Path(folder)) for shape in shapes)]
    return "".join(parts) + TRL_TITLE


def section(shape: Shape, folder: Path) -> str:
    """Return how a type is read, with an example row and what is trained of it; or why it is refused."""
    rows = [shape.row(*said) for said in SAID]
    verdict, texts = outcome(shape, rows, folder)
    settings = f" Settings: {inline(shape.settings)}." if shape.settings else ""
    example = "\n".join([json.dumps(rows[0], ensure_ascii=False), *texts])
    rule = f"\n\n{shape.rule}" if shape.rule else ""
    return f"\n### {shape.name}\n\n{verdict}{settings}{rule}\n\n```text\n{example}\n```\n"


def inline(settings: Row) -> str:
    """Return settings as YAML on one line."""
    return f"`{yaml.safe_dump(settings, default_flow_style=True, width=1000).strip()[1:-1]}`"


def outcome(shape: Shape, rows: list[Any], folder: Path) -> tuple[str, list[str]]:
    """Return how the rows of a type are read, or why they are refused, and the texts of the first row."""
    path = folder / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    build = Build(config_of(shape, path), ArtifactStore(folder / "store"), ComputeEngine(1))
    try:
        for stage in ("raw", "schema", "columns", "prompts"):
            build.run(stage)
    except TokenloomError as error:
        return f"Refused: {str(error).replace(f'{folder}/', '')}.", []
    (chunk,) = build.manifest("prompts").chunks
    row = build.store.objects.get(chunk.output).to_pylist()[0]
    texts = [
        f"{side.removesuffix('_') + ' ' if side else ''}{marked(row[f'{side}text'], row[f'{side}spans'])}"
        for side in ("chosen_", "rejected_", "")
        if f"{side}text" in row
    ]
    return reading(build), texts


def config_of(shape: Shape, path: Path) -> PipelineConfig:
    settings = {
        "tokenizer": {"name_or_path": str(tokenizer_in(path.parent)), "chat_template": CHAT},
        **{name: section for name, section in shape.settings.items() if name != "dataset"},
        "dataset": {"name": str(path), **shape.settings.get("dataset", {})},
    }
    return PipelineConfig.from_mapping(settings)


def tokenizer_in(folder: Path) -> Path:
    """Return a small tokenizer with ChatML's control tokens, saved in the folder unless it is there."""
    from support.small_tokenizers import CONTROL, byte_level

    saved = folder / "tokenizer"
    if not saved.exists():
        saved.mkdir()
        byte_level(CONTROL).save(str(saved / "tokenizer.json"))
        names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "<|pad|>"}
        (saved / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    return saved


def reading(build: Build) -> str:
    """Return how rows are read: the format, and the column of each role."""
    formats = build.manifest("schema").facts["formats"]
    best = choose([FormatCandidate(**candidate) for candidate in formats])
    mapping = build.manifest("columns").facts["mapping"]
    roles = ", ".join(f"{role} ← `{source}`" for role, source in mapping["roles"].items())
    detected = ""
    if isinstance(best, FormatCandidate) and best.roles == mapping["roles"]:
        detected = f"Read as {best.format}. "
    return f"{detected}Form `{mapping['form']}`: {roles}."


def marked(text: str, spans: list[Row]) -> str:
    """Return a text with its trained parts in brackets, on one line."""
    data, parts, trained = text.encode(), [], False
    for span in spans:
        if (span["weight"] > 0) != trained:
            trained = not trained
            parts.append("⟦" if trained else "⟧")
        parts.append(data[span["start"] : span["end"]].decode())
    return ("".join(parts) + "⟧" * trained).replace("\n", "⏎")


def comparison(data: Path, count: int = 200) -> str:
    """Return the section on TRL."""
    from support.trl_cases import CASES, NO_TEMPLATE, REASONS, compare, save_tokenizer
    from support.trl_rows import real_texts

    parts, seen = [TRL_HEAD.format(count=count)], set[str]()
    with tempfile.TemporaryDirectory(prefix="tokenloom-docs-") as folder:
        tokenizer, texts = save_tokenizer(Path(folder) / "tokenizer", data), real_texts(data, count)
        for number, case in enumerate(CASES):
            rows, kinds, wrong = compare(case, texts, Path(folder) / str(number), tokenizer)
            if wrong:
                raise SystemExit(f"{case.rows}: {wrong[0]}, which no reason allows")
            seen |= {*kinds}
            options = "".join(f", `{name}={value}`" for name, value in case.options.items())
            prompt = ", ".join(f"`{name}: {value}`" for name, value in case.prompt.items())
            chat = "contents" if case.chat == NO_TEMPLATE else case.chat or "none"
            different = ", ".join(f"{many} {kind}" for kind, many in kinds.items())
            equal = f"{rows - sum(kinds.values())} | {different}"
            parts.append(f"| {case.rows} | {case.trainer}{options} | {chat} | {prompt} | {equal} |\n")
    parts += [
        "\nWhy they differ:\n\n",
        *(f"- **{kind}**: {reason}\n" for kind, reason in REASONS.items() if kind in seen),
    ]
    return "".join(parts)


def main() -> int:
    data = os.environ.get("TOKENLOOM_REAL_DATA")
    PAGE.write_text(page(Path(data) if data else None), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
