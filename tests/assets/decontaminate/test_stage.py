"""Builds that drop or report rows with items of evaluations: which rows go, what is recorded and recomputed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from support.builds import SMALL, digests
from support.datasets_on_disk import STAGES, TOKENIZER, rows, write_dataset
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.report import StageReport
from tokenloom.assets.dagster.checks import Checked, stage_checks
from tokenloom.assets.shown_rows.token_runs import RowReader
from tokenloom.assets.stage.names import DECONTAMINATE
from tokenloom.assets.stage.rejects import CONTAMINATED, OVERLAP
from tokenloom.cli.main import main
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore

ITEMS = [
    "Which of the two ferries that cross the estuary at dawn carries the mail to the islands?",
    "A baker sells forty loaves in the morning and eleven in the evening: how many does she sell in all?",
    "Who painted the lighthouse?",
]
HALF = " ".join(ITEMS[0].split()[:9])
PLANTED = {
    20: {"instruction": ITEMS[0].upper(), "input": "", "output": "The first one."},
    70: {"instruction": "Tell me.", "input": "", "output": f"Someone asked: {ITEMS[1]} I said fifty-one."},
    130: {"instruction": f"Please:\n{ITEMS[2]}\nThanks", "input": "", "output": "Nobody."},
    270: {"instruction": "Ferries", "input": HALF, "output": "I do not know."},
}
"""Rows with items: whole and in capitals, inside an answer, a short one as a line, and half of one."""


def write(folder: Path, planted: Iterable[int] = PLANTED, count: int = 300, **decontaminate: Any) -> Path:
    config = write_dataset(folder, count)
    found = rows(count)
    for number in planted:
        found[number] = PLANTED[number]
    lines = (json.dumps(row, ensure_ascii=False) for row in found)
    (folder / "small.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    asked = ({"question": item, "answer": "?"} for item in ITEMS)
    (folder / "asked.jsonl").write_text("\n".join(map(json.dumps, asked)) + "\n")
    settings = yaml.safe_load(config.read_text())
    if decontaminate:
        settings["decontaminate"] = {"against": ["asked.jsonl"]} | decontaminate
    config.write_text(yaml.safe_dump(settings))
    return config


def built(config: Path, store: Path, workers: int = 2) -> tuple[Build, dict[str, StageReport]]:
    build = Build(PipelineConfig.from_file(config), ArtifactStore(store), ComputeEngine(workers), chunk_size=SMALL)
    return build, {report.name: report for report in build.run_all()}


def records(build: Build) -> dict[int, dict[str, Any]]:
    """The records of a build, by line from 0."""
    found = {}
    for chunk in build.manifest(DECONTAMINATE).chunks:
        for record in build.store.objects.get(chunk.rejects).to_pylist() if chunk.rejects else []:
            found[int(chunk.place(record["_row"]).rpartition(":")[2]) - 1] = record
    return found


def test_rows_with_items_are_dropped_and_recorded(tmp_path: Path) -> None:
    build, reports = built(write(tmp_path, threshold=0.5), tmp_path / "store")
    report = reports[DECONTAMINATE]
    assert (report.rows_in, report.rows_out, report.rejected, report.filtered) == (300, 296, 0, 4)
    assert reports["sequences"].rows_out == 296
    found = records(build)
    assert {line: record["message"] for line, record in found.items()} == {
        20: "contains 100% of item 1 of asked",
        70: "contains 100% of item 2 of asked",
        130: "contains 100% of item 3 of asked",
        270: "contains 52% of item 1 of asked",
    }
    assert {record["code"] for record in found.values()} == {CONTAMINATED}
    assert found[20]["excerpt"] == ITEMS[0].casefold().rstrip("?")
    assert found[270]["excerpt"] == HALF.casefold()
    assert report.counters == {"contaminated:asked": 4}
    assert report.notices == (
        "4 of 300 rows contain an item of an evaluation (asked 4); they are dropped; `tokenloom dropped` lists them",
    )
    reader = RowReader(build.store, "small", build.stages)
    assert [row for row in range(300) if reader.read(row).absence.startswith("dropped by decontaminate")] == [*PLANTED]
    assert "decontaminate.ignore" in reader.read(20).absence


@pytest.mark.parametrize(("search", "dropped"), [("prompt", [20, 130, 270]), ("completion", [70])])
def test_one_side_of_rows_is_searched(tmp_path: Path, search: str, dropped: list[int]) -> None:
    build, _ = built(write(tmp_path, search=search), tmp_path / "store")
    assert [*records(build)] == dropped


def test_a_higher_threshold_keeps_halves_and_ignored_items_drop_nothing(tmp_path: Path) -> None:
    build, _ = built(write(tmp_path, threshold=0.6, ignore=["asked:2"]), tmp_path / "store")
    assert [*records(build)] == [20, 130]


def test_chunks_that_lose_nothing_are_as_without_the_stage(tmp_path: Path) -> None:
    store = tmp_path / "store"
    plain, before = built(write(tmp_path, count=900), store)
    clean, reports = built(write(tmp_path, count=900, action="drop"), store)
    of_columns, of_clean = (plain.manifest(name) if name == "columns" else clean.manifest(name) for name in CLEANED)
    lost = [number for number, chunk in enumerate(of_clean.chunks) if chunk.filtered]
    assert 0 < len(lost) < len(of_clean.chunks)
    for number, (was, now) in enumerate(zip(of_columns.chunks, of_clean.chunks, strict=True)):
        assert (was.output == now.output) == (number not in lost)
    assert reports["prompts"].chunks - reports["prompts"].chunks_reused == len(lost)
    _, back = built(write(tmp_path, count=900), store)
    assert digests(back) == digests(before)
    assert all(report.chunks_reused == report.chunks for report in back.values())


CLEANED = ("columns", DECONTAMINATE)


def test_reported_rows_stay(tmp_path: Path) -> None:
    store = tmp_path / "store"
    _, before = built(write(tmp_path), store)
    build, reports = built(write(tmp_path, action="report"), store)
    assert [*records(build)] == [*PLANTED]
    assert {record["code"] for record in records(build).values()} == {OVERLAP}
    report = reports[DECONTAMINATE]
    assert (report.rows_out, report.rejected, report.filtered) == (300, 0, 0)
    assert {name: reports[name].digest for name in STAGES} == digests(before)
    assert all(reports[name].chunks_reused == reports[name].chunks for name in STAGES)
    reader = RowReader(build.store, "small", build.stages)
    assert not any(reader.read(row).absence for row in PLANTED)


@pytest.mark.parametrize("workers", [1, 3])
def test_changed_rows_and_evaluations_give_what_a_new_build_gives(tmp_path: Path, workers: int) -> None:
    changed = tmp_path / "changed"
    _, first = built(write(changed, planted=[20, 70], action="drop"), changed / "store")
    build, second = built(write(changed, count=310, action="drop"), changed / "store", workers)
    assert 0 < second[DECONTAMINATE].chunks - second[DECONTAMINATE].chunks_reused < second[DECONTAMINATE].chunks
    cold = tmp_path / "cold"
    _, expected = built(write(cold, count=310, action="drop"), cold / "store")
    assert digests(second) == digests(expected) != digests(first)
    with (changed / "asked.jsonl").open("a") as file:
        file.write(
            json.dumps({"question": rows(310)[250]["output"][:0] + " ".join(["river"] * 9), "answer": ""}) + "\n"
        )
    before = build.manifest("columns").chunks
    build, third = built(changed / "small.yaml", changed / "store", workers)
    assert third["columns"].chunks_reused == len(before)
    lost = len(records(build)) - 4
    assert third["prompts"].chunks - third["prompts"].chunks_reused <= lost


def called(arguments: Any) -> dict[str, Any]:
    """A message with a call, in OpenAI's layout."""
    call = {"id": "call_1", "type": "function", "function": {"name": "say", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "joined": ({"prompt": "{}", "completion": "Yes."}, {"format_type": "completion"}),
    "completion": ({"prompt": "{}", "completion": "Yes."}, {}),
    "messages": ({"messages": [{"role": "user", "content": "{}"}, {"role": "assistant", "content": "Yes."}]}, {}),
    "conversations": ({"conversations": [{"from": "human", "value": "{}"}, {"from": "gpt", "value": "Yes."}]}, {}),
    "text": ({"text": "{}"}, {}),
    "segments": ({"segments": [{"text": "Said:\n", "label": False}, {"text": "{}", "label": True}]}, {}),
    "preference": ({"prompt": "{}", "chosen": "Yes, both of them.", "rejected": "No."}, {}),
    "kto": ({"prompt": "{}", "completion": "Yes.", "label": True}, {}),
    "prompt_only": ({"prompt": "{}"}, {"format_type": "prompt_only"}),
    "jinja": ({"q": "{}", "a": "Yes."}, {"format_type": "jinja", "template": "{{ q }}: {{ a }}", "label_column": "a"}),
    "calls": ({"messages": [{"role": "user", "content": "Go"}, called({"said": "{}"})]}, {}),
    "calls as text": ({"messages": [{"role": "user", "content": "Go"}, called('{"said": "{}"}')]}, {}),
    "reasoning": (
        {"messages": [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "Ok", "reasoning": "{}"}]},
        {},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_row_is_searched(tmp_path: Path, tokenizer_folder: Path, form: str) -> None:
    row, prompt = FORMS[form]
    text = json.dumps(row)
    lines = [text.replace("{}", item) for item in ("What is new?", *ITEMS, "Nothing at all.")]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "items.txt").write_text("\n".join(ITEMS))
    settings = {
        "dataset": {"name": "rows.jsonl"},
        "tokenizer": {"name_or_path": str(tokenizer_folder), "chat_template": "chatml"},
        "prompt_template": prompt,
        "decontaminate": {"against": ["items.txt"]},
    }
    (tmp_path / "rows.yaml").write_text(yaml.safe_dump(settings))
    build, reports = built(tmp_path / "rows.yaml", tmp_path / "store")
    assert (reports[DECONTAMINATE].filtered, reports[DECONTAMINATE].rows_out) == (3, 2)
    assert [record["message"] for record in records(build).values()] == [
        f"contains 100% of item {number} of items" for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("against", "settings", "message"),
    [
        ("nothing.jsonl", {}, r"decontaminate\.against\.0: no such file: nothing\.jsonl"),
        ({"name": "asked.jsonl", "columns": ["qestion"]}, {}, r"no column qestion; .*did you mean question\?"),
        ({"name": "asked.jsonl", "columns": ["answer"]}, {}, r"none of the 3 items of asked can be found"),
        ({"name": "asked.jsonl", "split": "test"}, {}, r"against\.0: no split test; the dataset has train"),
        ({"name": "asked.jsonl", "config": "a"}, {}, r"against\.0: has no effect: asked\.jsonl declares no configs"),
        ("broken.jsonl", {}, r"against\.0: broken\.jsonl, row 2: Expecting value"),
        ("empty.jsonl", {}, r"against\.0: .*empty\.jsonl"),
        ("unclear.csv", {}, r"not clear which columns of unclear\.csv .*columns: \[a\]"),
        ("asked.jsonl", {"ignore": ["asked:4"]}, r"ignore\.0: asked has no item 4; it has items 1 to 3"),
        (
            "asked.jsonl",
            {"ignore": ["askd:1"]},
            r"ignore\.0: no evaluation is called 'askd': asked; did you mean asked",
        ),
        ("asked.jsonl", {"ignore": ["asked"]}, r"ignore\.0: 'asked' is not an item; .* as asked:1"),
        ("asked.jsonl", {"ngram_size": 2}, r"ngram_size.* greater than or equal to 3"),
        ("asked.jsonl", {"threshold": 0}, r"threshold.* greater than 0"),
        ("asked.jsonl", {"treshold": 0.5}, r"treshold.* did you mean threshold"),
    ],
)
def test_mistakes_have_a_line_and_a_remedy(
    tmp_path: Path, against: Any, settings: dict[str, Any], message: str
) -> None:
    config = write(tmp_path, against=[against], **settings)
    (tmp_path / "broken.jsonl").write_text('{"question": "What is it?"}\n{"question": \n')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "unclear.csv").write_text("a,b,c\n1,2,3\n4,5,6\n")
    with pytest.raises(ConfigError, match=message) as raised:
        built(config, tmp_path / "store")
    assert re.match(rf"{re.escape(str(config))}:\d+: decontaminate", str(raised.value))


def test_two_evaluations_with_one_name_and_streams_are_refused(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    config = write(tmp_path, against=["asked.jsonl", "more/asked.jsonl"])
    with pytest.raises(ConfigError, match=r"two evaluations are called asked"):
        PipelineConfig.from_file(config)
    config = write(tmp_path, against=["asked.jsonl"])
    settings = yaml.safe_load(config.read_text())
    settings["dataset"]["streaming"] = True
    with pytest.raises(ConfigError, match=r"decontaminate: needs a build, but dataset\.streaming"):
        PipelineConfig.from_mapping(settings)


def test_rows_of_text_have_no_sides_to_search(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("One line.\nAnother line.\n")
    (tmp_path / "items.txt").write_text("\n".join(ITEMS))
    clean = {"against": ["items.txt"], "search": "prompt"}
    (tmp_path / "rows.yaml").write_text(
        yaml.safe_dump({"dataset": {"name": "rows.txt"}, "tokenizer": TOKENIZER, "decontaminate": clean})
    )
    with pytest.raises(ConfigError, match=r"decontaminate\.search: .*no prompt and completion.*set search: all"):
        built(tmp_path / "rows.yaml", tmp_path / "store")


@pytest.mark.parametrize(("action", "passed"), [("drop", True), ("report", False)])
def test_the_check_warns_of_rows_that_stay(tmp_path: Path, action: str, passed: bool) -> None:
    build, _ = built(write(tmp_path, action=action), tmp_path / "store")
    checks = {f"{check.stage}/{check.name}": check for check in stage_checks(build.config)}
    assert checks[f"{DECONTAMINATE}/contract"].run(Checked(build)).passed
    verdict = checks[f"{DECONTAMINATE}/contamination"].run(Checked(build))
    assert (verdict.passed, verdict.warns) == (passed, True)
    assert verdict.metadata["contaminated"] == verdict.metadata["contaminated/asked"] == 4
    assert "4 of 300 rows contain an item" in verdict.description
    assert checks["sequences/rejects"].run(Checked(build)).passed


def test_the_command_lists_rows_items_and_passages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, store = write(tmp_path, action="drop"), tmp_path / "store"
    built(config, store)
    assert main(["dropped", str(config), "--store", str(store)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "asked: 4 of 300 rows contain one of its 3 items"
    assert lines[1] == f"  small.jsonl:21 contains 100% of item 1 of asked: {ITEMS[0].casefold().rstrip('?')}"
    assert lines[4].startswith("  small.jsonl:271 contains 52% of item 1 of asked: which of")
    assert main(["dropped", str(config), "--store", str(store), "--rows", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == ["  and 3 more (--rows, --json)"]
    assert main(["dropped", str(config), "--store", str(store), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(row["place"], row["share"]) for row in listed["decontaminate"]] == [
        ("small.jsonl:21", 100), ("small.jsonl:71", 100), ("small.jsonl:131", 100), ("small.jsonl:271", 52),
    ]  # fmt: skip
    assert main(["dropped", str(write(tmp_path)), "--store", str(store)]) == 2
    assert "this YAML has no section decontaminate or dedup" in capsys.readouterr().err


CLEAN = {
    "alpaca": ("instruct/alpaca_data.json", {6884, 11408, 14252}),
    "wikitext": ("text/wikitext-2/test.txt", set()),
    "gsm8k_train": ("math/gsm8k_train.jsonl", {20, 1314, 5162}),
}
"""Rows that hold an item of GSM8K's or TruthfulQA's questions, found by reading them."""


@pytest.mark.parametrize("name", CLEAN)
def test_of_real_rows_only_those_with_an_item_go(real_data: Path, tmp_path: Path, name: str) -> None:
    file, expected = CLEAN[name]
    settings = {
        "name": name,
        "dataset": {"name": str(real_data / file)},
        "tokenizer": {"name_or_path": str(real_data / "tokenizers/phi-2/tokenizer.json"), "chat_template": "qa"},
        "prompt_template": {"add_eos": False},
        "decontaminate": {
            "against": [
                str(real_data / "math/gsm8k_test.jsonl"),
                {"name": str(real_data / "awkward/TruthfulQA_bom.csv"), "columns": ["Question"]},
            ]
        },
    }
    build = Build(PipelineConfig.from_mapping(settings), ArtifactStore(tmp_path / "store"))
    for _ in build.run_all(DECONTAMINATE):
        pass
    found: set[int] = set()
    for chunk in build.manifest(DECONTAMINATE).chunks:
        table = build.store.objects.get(chunk.rejects) if chunk.rejects else pa.table({"_row": []})
        for place in map(chunk.place, table["_row"].to_pylist()):
            found.add(int(re.split(r":| row ", place)[-1]) - (":" in place))  # lines count from 1
    assert found == expected


SIDED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{name: FORMS[name] for name in ("joined", "completion", "messages", "conversations", "preference", "jinja")},
    "joined answer": ({"prompt": "Say it.", "completion": "{}"}, {"format_type": "completion"}),
    "said answer": ({"prompt": "Say it.", "completion": "{}"}, {}),
    "template answer": ({"q": "Say it.", "a": "{}"}, {"template": "{q}\n{a}", "label_column": "a"}),
    "chosen answer": ({"prompt": "Say it.", "chosen": "{}", "rejected": "No."}, {}),
}
"""Rows with an item in the prompt, or in the answer."""


@pytest.mark.parametrize("form", SIDED)
@pytest.mark.parametrize("search", ["prompt", "completion"])
def test_prompts_and_completions_of_every_form_are_told_apart(
    tmp_path: Path, tokenizer_folder: Path, form: str, search: str
) -> None:
    row, prompt = SIDED[form]
    found = 3 if (search == "completion") == form.endswith("answer") else 0
    lines = [json.dumps(row).replace("{}", item) for item in ("What is new?", *ITEMS)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "items.txt").write_text("\n".join(ITEMS))
    settings = {
        "dataset": {"name": "rows.jsonl"},
        "tokenizer": {"name_or_path": str(tokenizer_folder), "chat_template": "chatml"},
        "prompt_template": prompt,
        "decontaminate": {"against": ["items.txt"], "search": search},
    }
    (tmp_path / "rows.yaml").write_text(yaml.safe_dump(settings))
    _, reports = built(tmp_path / "rows.yaml", tmp_path / "store")
    assert reports[DECONTAMINATE].filtered == found
