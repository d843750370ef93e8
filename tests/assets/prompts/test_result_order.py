"""Results of parallel calls are in the order of their calls where the template shows no ids.

Reports: modelscope/ms-swift #10174 (its rule: ids that are distinct, and one result for each call), JustVugg/colibri
#118 (GLM), SalesforceAIResearch/xLAM #23 (Llama), MiaAI-Lab/Qwen3.8-27B-DFlash2-EXL3-5.0bpw #10.
"""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from transformers import PreTrainedTokenizerFast

from support.canonical_tables import call
from support.columns_stage import as_json, config_of
from support.rendered_prompts import trained_parts
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import ColumnMapping
from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.tokenizers import resolve_tokenizer

Row = dict[str, Any]
FOLDER = Path(__file__).parents[2] / "support" / "chat_templates"
HERMES = (FOLDER / "hermes.jinja").read_text(encoding="utf-8")
WITH_IDS = HERMES.replace("'\\n<tool_response>\\n'", "'\\n<tool_response id=' + message.tool_call_id + '>\\n'")
HI, DONE = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "Done."}


def calling(*names: str | None) -> Row:
    calls = [call("look", {"n": number}, name) for number, name in enumerate(names)]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(name: str | None, text: str = "") -> Row:
    return {"role": "tool", "content": text or f"of {name}", **({} if name is None else {"tool_call_id": name})}


def texts(talks: list[list[Row]], tokenizer: Path, template: str, **prompt: Any) -> list[str]:
    """The texts of the conversations, of which only the answers are trained."""
    settings = {"name_or_path": str(tokenizer), "chat_template": template}
    config = config_of(tokenizer=settings, prompt_template={"format_type": "chat", **prompt})
    table = as_json(*({"messages": talk} for talk in talks))
    table = table.append_column(ROW, [list(range(len(talks)))]).cast(table.schema.append(pa.field(ROW, pa.int32())))
    mapping = ColumnMapping("messages", {"messages": "messages"})
    out = renderer(config, mapping.to_json(), resolve_tokenizer(config))(to_canonical(table, mapping).table)
    assert out.table.num_rows == len(talks), out.rejects.to_pylist()
    for row in out.table.to_pylist():
        assert not any("<tool_response" in part for part in trained_parts(row["text"], row["spans"]))
    return out.table["text"].to_pylist()


def expected(talk: list[Row], tokenizer: Path, template: str) -> str:
    reference = PreTrainedTokenizerFast.from_pretrained(tokenizer)
    return reference.apply_chat_template(talk, tokenize=False, chat_template=template)


def test_results_are_in_the_order_of_their_calls(tokenizer_folder: Path) -> None:
    first, second = [HI, calling("a", "b", "c")], [calling("d", "e"), result("e"), result("d"), DONE]
    ordered = [*first, *map(result, "abc"), calling("d", "e"), result("d"), result("e"), DONE]
    talks = [[*first, *map(result, names), *second] for names in permutations("abc")]
    assert {*texts(talks, tokenizer_folder, HERMES)} == {expected(ordered, tokenizer_folder, HERMES)}


KEPT: dict[str, list[Row]] = {
    "no ids": [HI, calling(None, None), result(None, "2"), result(None, "1"), DONE],
    "an id that no call has": [HI, calling("a", "b"), result("x"), result("a"), DONE],
    "two results of one call": [HI, calling("a", "b"), result("b"), result("b", "again"), DONE],
    "two calls of one id": [HI, calling("a", "a"), result("a", "2"), result("a", "1"), DONE],
    "a call without a result": [HI, calling("a", "b", "c"), result("c"), result("a"), DONE],
    "a question between": [HI, calling("a", "b"), result("b"), HI, result("a"), DONE],
    "results first": [result("b"), result("a"), HI, DONE],
    "numbers as ids": [HI, calling("1", "2"), {**result("2"), "tool_call_id": 2}, result("1"), DONE],
}
"""Conversations in which it is not certain which result belongs to which call."""


@pytest.mark.parametrize("case", KEPT)
def test_uncertain_results_stay_where_they_are(case: str, tokenizer_folder: Path) -> None:
    before = [HI, calling("a", "b")]  # another row's calls
    found = texts([before, KEPT[case]], tokenizer_folder, HERMES)
    assert found[1] == expected(KEPT[case], tokenizer_folder, HERMES)


def test_templates_with_ids_show_results_as_they_are(tokenizer_folder: Path) -> None:
    talk = [HI, calling("a", "b"), result("b"), result("a"), DONE]
    assert texts([talk], tokenizer_folder, WITH_IDS) == [expected(talk, tokenizer_folder, WITH_IDS)]


def test_weights_and_exact_turns_follow_the_order(tokenizer_folder: Path) -> None:
    talk = [HI, calling("a", "b"), result("b") | {"train": False}, result("a"), DONE]
    ordered = [*talk[:2], result("a"), result("b"), DONE]
    assert texts([talk], tokenizer_folder, HERMES, turns="exact") == [expected(ordered, tokenizer_folder, HERMES)]
