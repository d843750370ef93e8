"""Rows with tool calls reach the chat template as `json.loads` reads them: the text is `apply_chat_template`'s.

Templates are those that TRL ships for models that call tools. What a template refuses, or omits, is rejected.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import trl
from transformers import PreTrainedTokenizerFast

from support.built_prompts import Texts, built_texts, rendered_texts
from support.soak import SOAK
from support.tool_call_rows import CLASSES, Row, lines, shuffled

Convert = Callable[[Any], Any]

SHIPPED = Path(trl.__file__).parent / "chat_templates"
DATE = datetime.now().strftime("%Y-%m-%d")
EVERY = (
    *("qwen2_5", "qwen3", "qwen3_5_think", "qwen3_8", "llama3_1", "llama3_2", "glm4moe", "gptoss", "lfm2_2_5"),
    *("nemotron_3_nano", "gemma4", "gemma4_v5", "muse_glimmer", "deepseekv3"),
)
TEMPLATES = EVERY if SOAK else ("qwen2_5", "qwen3_5_think", "gptoss")
PACKED = TEMPLATES if SOAK else TEMPLATES[:1]
TYPED = EVERY if SOAK else ("qwen3", "llama3_1")
COUNT = 10 if SOAK else 3
LLAMA = {"reasoning beside a call": "reasoning_ignored", "text beside a call": "content_dropped"}
OMITTED: dict[str, dict[str, str]] = {
    "qwen2_5": {"reasoning beside a call": "reasoning_ignored"},
    "llama3_1": LLAMA,
    "llama3_2": LLAMA,
    "gptoss": {
        "reasoning beside a call": "reasoning_ignored",
        "text beside a call": "content_dropped",
        "parallel calls": "tool_calls_ignored",
        "calls of different functions": "tool_calls_ignored",
    },
    "gemma4": {"text beside a call": "tool_calls"},
    "gemma4_v5": {"text beside a call": "tool_calls"},
    "muse_glimmer": {"text beside a call": "content_dropped"},
    "deepseekv3": dict.fromkeys(CLASSES, "tools_ignored"),
}
"""For each template, the classes of rows of which it omits a part, with the code that rejects them."""


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)


@cache
def template(name: str) -> str:
    return (SHIPPED / f"{name}.jinja").read_text(encoding="utf-8")


def written(tokenizer: PreTrainedTokenizerFast, name: str, row: Row) -> set[str]:
    """Return what the template can write for a row as Python reads it.

    Call arguments are as they are, objects, or text that the template writes unquoted. Contents that are not text are
    as they are, or text if the template refuses or drops them so, or writes the list of parts as `repr` or JSON.
    """
    texts = set()
    for arguments in (_unchanged, _parsed, _as_text):
        text = rendered(tokenizer, name, row, arguments, _unchanged)
        contents = [message.get("content") for message in row["messages"]]
        parts = [content for content in contents if content and _are_parts(content)]
        printed = [shown(each) for each in parts for shown in (str, partial(json.dumps, ensure_ascii=False))]
        emptied = rendered(tokenizer, name, row, arguments, _emptied)
        if text is None or text == emptied or any(shown in text for shown in printed):
            text = rendered(tokenizer, name, row, arguments, _as_text)
        if text is not None and not any(quoted in text for quoted in _quoted(row, arguments)):
            texts.add(text)
    return texts


def _quoted(row: Row, arguments: Convert) -> list[str]:
    """Return the JSON of call arguments that are text: a template that writes it has quoted them twice."""
    calls = [call for message in row["messages"] for call in message.get("tool_calls") or ()]
    given = [arguments(call["function"]["arguments"]) for call in calls]
    return [json.dumps(text, ensure_ascii=False) for text in given if isinstance(text, str)]


def rendered(
    tokenizer: PreTrainedTokenizerFast, name: str, row: Row, arguments: Convert, content: Convert
) -> str | None:
    """Return `apply_chat_template` of a row with changed arguments, and contents that are not text changed; None if
    the template raises."""
    given = copy.deepcopy(row)
    for message in given["messages"]:
        if not isinstance(message.get("content"), str | None):
            message["content"] = content(message["content"])
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = arguments(call["function"]["arguments"])
    tools = given.get("tools")
    tools = json.loads(tools) if isinstance(tools, str) else tools
    sections = {"tools": tools or None, "chat_template": template(name), "date_string": DATE}
    try:
        return str(tokenizer.apply_chat_template(given["messages"], tokenize=False, **sections))
    except Exception:  # a template can raise anything
        return None


def _unchanged(value: Any) -> Any:
    return value


def _emptied(value: Any) -> Any:
    """Return a content without its text: parts without texts, an object's keys alone, "" for other values."""
    if isinstance(value, dict) and value:
        return dict.fromkeys(value, "")
    return [{**part, "text": ""} for part in value] if value and _are_parts(value) else ""


def _parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _are_parts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, dict) and "text" in part for part in value)


def _as_text(value: Any) -> str:
    if _are_parts(value):
        return "".join(part["text"] for part in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def faults(texts: Texts, rows: list[tuple[str, Row]], name: str, tokenizer: PreTrainedTokenizerFast) -> dict[str, str]:
    """Return the classes of rows that are rendered wrongly, or rejected though the template writes them, with the
    first fault of each."""
    rendered, rejects = texts
    assert rendered.keys() | rejects.keys() == set(range(len(rows)))
    found: dict[str, str] = {}
    for number, (kind, row) in enumerate(rows):
        expected = written(tokenizer, name, row)
        if number in rendered and rendered[number] not in expected:
            found.setdefault(kind, f"{rendered[number]!r} for {expected}")
        if number in rejects and expected and not rejects[number].startswith(OMITTED.get(name, {}).get(kind, "none")):
            found.setdefault(kind, rejects[number])
    return found


def settings(name: str, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {
        "tokenizer": {"name_or_path": str(tokenizer.name_or_path), "chat_template": template(name)},
        "prompt_template": {"format_type": "chat", "date_string": DATE, "add_eos": False},
    }


def write(path: Path, rows: list[str]) -> Path:
    text = f"[{', '.join(rows)}]" if path.suffix == ".json" else "\n".join(rows)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", TEMPLATES)
def test_rows_of_all_classes_in_one_file(name: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = shuffled(COUNT)
    parsed = [(kind, json.loads(line)) for kind, line in rows]
    paths = [write(tmp_path / f"rows{suffix}", [line for _, line in rows]) for suffix in (".jsonl", ".json")]
    texts, others = [built_texts(path, tmp_path / "store", **settings(name, tokenizer)) for path in paths]
    assert texts == others
    for path in paths if name in PACKED else ():
        packed = path.with_name(f"{path.name}.gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        assert rendered_texts(packed, **settings(name, tokenizer)) == texts
    assert faults(texts, parsed, name, tokenizer) == {}


@pytest.mark.parametrize("kind", CLASSES)
def test_rows_of_one_class_in_a_file(kind: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = lines(kind, COUNT)
    path = write(tmp_path / "rows.jsonl", rows)
    for name in EVERY if SOAK else ("qwen3",):
        texts = rendered_texts(path, **settings(name, tokenizer))
        assert faults(texts, [(kind, json.loads(line)) for line in rows], name, tokenizer) == {}


def written_as_parquet(path: Path, rows: list[Row]) -> bool:
    """Write rows as a typed table, and return whether Arrow and Parquet have types that hold them."""
    try:
        pq.write_table(pa.Table.from_pylist(rows), path)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return False
    return True


def _without_null_fields(value: Any) -> Any:
    """Return a value without the null fields that structs have for other rows."""
    if isinstance(value, dict):
        return {name: _without_null_fields(inner) for name, inner in value.items() if inner is not None}
    return [_without_null_fields(inner) for inner in value] if isinstance(value, list) else value


def read_rows(kinds: Iterable[str], count: int = COUNT) -> list[tuple[str, Row]]:
    return [(kind, json.loads(line)) for kind in kinds for line in lines(kind, count)]


@pytest.mark.parametrize("name", TYPED)
def test_typed_tables_reach_the_template_without_null_fields_or_as_to_pylist_reads_them(
    name: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    path = tmp_path / "rows.parquet"
    together: list[str] = []
    for kind in CLASSES:
        together += [kind] * written_as_parquet(path, [row for _, row in read_rows([*together, kind], 1)])
    compared, found = 0, dict[str, str]()
    alone = CLASSES if SOAK or name == TYPED[0] else ()
    for rows in [read_rows(together, 1), *(read_rows([kind]) for kind in alone)]:
        if written_as_parquet(path, [row for _, row in rows]):
            read = [(kind, row) for (kind, _), row in zip(rows, pq.read_table(path).to_pylist(), strict=True)]
            for nulls, given in (("keep", read), ("omit", [(kind, _without_null_fields(row)) for kind, row in read])):
                texts = rendered_texts(path, **settings(name, tokenizer), dataset={"struct_nulls": nulls})
                found |= faults(texts, given, name, tokenizer)
            compared += 1
            if SOAK or compared == 1:
                feather.write_feather(pq.read_table(path), path.with_suffix(".arrow"), compression="uncompressed")
                assert rendered_texts(path.with_suffix(".arrow"), **settings(name, tokenizer)) == texts
    assert found == {}
    assert compared > (30 if alone else 0)
