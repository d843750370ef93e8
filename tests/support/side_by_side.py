"""What chat templates make of many conversations, to compare two checkouts.

    PYTHONPATH=CHECKOUT:CHECKOUT/tests python tests/support/side_by_side.py render FOLDER OUT
        [--only NAME] [--part 0/2] [--modes exact,kinds]
    python tests/support/side_by_side.py compare OLD NEW

FOLDER has `*.jinja` files. `render` runs the `tokenloom` that PYTHONPATH names, and writes a JSON file per template.
`compare` prints what differs, and counts it: `refused, now rendered` are rows that only OLD rejects.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

Row = dict[str, Any]

MODES: dict[str, Row] = {
    "together": {},
    "exact": {"turns": "exact"},
    "kinds": {"train_on": {"content": 1, "reasoning": 0.5, "tool_calls": 0.25, "stop": 1}},
    "all": {"train_on": "all"},
    "ranges": {"train_ranges": "train_detail"},
}
TEXTS = (
    *("Fine.", "Yes, of course.", "  spaced \n", " \n", "\nNo", "a\n\nb", 'q"uote \\ back', "é漢😀", "tail \t"),
    *("<think>\nhm\n</think>\n\nok", "hm\n</think>\n\nok", "<tool_response>x</tool_response>", "<|im_end|>", "Pa"),
    *("[INST] x", "{'a': 1}", '{"a": 1}', "\u2028x", "0", "None", "<tool_call>", "long " * 99, "\ue0d00\ue0d1", "</s>"),
)


def varied(draw: random.Random, value: Any, name: str = "") -> Any:
    """Return a message, or a part of one, with other texts in the same places."""
    if isinstance(value, dict):
        return {key: varied(draw, inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [varied(draw, inner, name) for inner in value]
    if name in ("content", "reasoning_content", "text") and value and "</think>" not in str(value):
        return draw.choice(TEXTS) if draw.random() < 0.4 else f"{value} {draw.randrange(9)}"
    if name == "city":
        return draw.choice(["Rome", "New York", 'q"', "é", "</think>", 5, 1.5, None, ["a"], {"b": "c"}, " x", ""])
    return f"{value}_{draw.randrange(3)}" if name == "name" and isinstance(value, str) else value


def rows_of() -> list[Row]:
    from tests.support.public_templates import TALKS, tools_of

    draw, rows = random.Random(7), []
    for talk in TALKS.values():
        for number in range(5):
            said = talk if not number else varied(draw, talk)
            row: Row = {"messages": said}
            if tools := tools_of(talk):
                row["tools"] = varied(draw, tools) if number % 2 else tools
            rows.append(row)
    plain = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A b c d"}]
    detail = [{"begin_offset": 2, "end_offset": 3, "train": False}]
    rows += [
        {"messages": [plain[0], {**plain[1], "train_detail": detail, "content": text}]} for text in ("A b c", " b c ")
    ]
    rows += [{"messages": [varied(draw, plain[0]), varied(draw, plain[1])]} for _ in range(60)]
    return rows


def render(folder: Path, out: Path, only: str, part: tuple[int, int], modes: list[str]) -> None:
    from support.columns_stage import as_json, canonical
    from tests.support.public_templates import DATE, Public
    from tokenloom.assets.prompts.chat import ChatFormat
    from tokenloom.config import PromptTemplateConfig
    from tokenloom.resources.templates.jinja import JinjaTemplate

    rows = rows_of()
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.glob("*.jinja"))[part[0] :: part[1]]:
        if only not in path.stem:
            continue
        template, found = Public(path.stem, path.read_text(encoding="utf-8")), {}
        for mode in modes:
            settings = MODES[mode]
            prompt = PromptTemplateConfig(format_type="chat", date_string=DATE, **settings)
            try:
                jinja = JinjaTemplate(template.text, DATE)
                eos = template.stops[0]
                chat = ChatFormat(jinja, prompt, template.tokens, template.control, "<s>", eos)
                made = chat.render(canonical(as_json(*rows)).table)
            except Exception as error:
                found[mode] = {"error": f"{type(error).__name__}: {error}"}
                continue
            texts: dict[int, list[Any]] = {}
            for row in made.table.to_pylist():
                texts.setdefault(row["row"] if "row" in row else next(iter(row.values())), []).append(
                    [row["text"], [list(span.values()) for span in row["spans"]]]
                )
            rejects = {next(iter(row.values())): [row["code"], row["message"]] for row in made.rejects.to_pylist()}
            found[mode] = {"texts": texts, "rejects": rejects, "counters": made.counters}
        (out / f"{path.stem}.json").write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
        print(path.stem, flush=True)


def compare(old: Path, new: Path) -> None:
    counts: Counter[str] = Counter()
    for path in sorted(new.glob("*.json")):
        if not (old / path.name).exists():
            continue
        one, other = (json.loads((folder / path.name).read_text(encoding="utf-8")) for folder in (old, new))
        for mode in other:
            if "error" in one[mode] or "error" in other[mode]:
                same = one[mode] == other[mode]
                counts["error alike" if same else "error differs"] += 1
                if not same:
                    print(path.stem, mode, "error", one[mode].get("error"), other[mode].get("error"))
                continue
            (texts, was), (made, now) = ((found["texts"], found["rejects"]) for found in (one[mode], other[mode]))
            for row in sorted({*texts, *was, *made, *now}, key=int):
                before, after = (texts.get(row), was.get(row)), (made.get(row), now.get(row))
                kind = "same" if before == after else "differs"
                if kind != "same" and before[0] is None and after[0] is not None:
                    kind = "refused, now rendered"
                elif kind != "same" and before[0] is None and after[0] is None:
                    kind = "refused otherwise"
                elif kind != "same" and after[0] is None:
                    kind = "now refused"
                counts[kind] += 1
                if kind != "same":
                    print(path.stem, mode, "row", row, kind)
                    shown = [json.dumps(side, ensure_ascii=False)[:700] for side in (before, after)]
                    print("   ", "\n    ".join(shown))
            if one[mode]["counters"] != other[mode]["counters"]:
                counts["counters differ"] += 1
    print(dict(counts))


def main() -> None:
    command, first, second, *more = sys.argv[1:]
    options = dict(zip(more[::2], more[1::2], strict=True))
    if command == "compare":
        compare(Path(first), Path(second))
        return
    place, _, count = options.get("--part", "0/1").partition("/")
    modes = options.get("--modes", ",".join(MODES)).split(",")
    render(Path(first), Path(second), options.get("--only", ""), (int(place), int(count)), modes)


if __name__ == "__main__":
    main()
