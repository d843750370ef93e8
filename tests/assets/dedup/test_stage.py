"""Builds that drop repeated rows: which go, what is recorded, and what a change of the source computes again."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.builds import SMALL, digests
from support.datasets_on_disk import STAGES, TOKENIZER, rows
from support.garbage import gc
from support.soak import each
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.diff import diff_datasets
from tokenloom.assets.building.explain import explain, outdated
from tokenloom.assets.building.report import StageReport
from tokenloom.assets.building.target import read_folder
from tokenloom.assets.dagster.checks import Checked, stage_checks
from tokenloom.assets.dedup.stage import groups
from tokenloom.assets.shown_rows.token_runs import RowReader
from tokenloom.assets.stage.names import COLUMNS, DEDUP, FINGERPRINTS, RAW, SCHEMA
from tokenloom.assets.stage.rejects import DUPLICATE, NEAR_DUPLICATE
from tokenloom.cli.main import main
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore

Row = dict[str, str]
AFTER = ("prompts", "tokens", "sequences")


def varied(row: Row, number: int = 0) -> Row:
    """A row with one word of many changed."""
    return {**row, "output": f"{row['output']} also{number}"}


def source(count: int = 700) -> list[Row]:
    """Long rows, some of which repeat earlier ones: the same, and nearly the same."""
    found = [{"instruction": row["instruction"], "output": row["output"]} for row in rows(max(count, 700), words=80)]
    for place, first in [(100, 20), (300, 20), (650, 7)]:
        found[place] = dict(found[first])
    for place, first in [(200, 55), (201, 55), (640, 300)]:
        found[place] = varied(found[first], place)
    return found[:count]


SAME, NEAR = {100: 20, 300: 20, 650: 7}, {200: 55, 201: 55, 640: 20}


def write(folder: Path, made: list[Row] | dict[str, list[Row]], dedup: Any = True, **sections: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    files = made if isinstance(made, dict) else {"rows": made}
    for name, some in files.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in some))
    settings: dict[str, Any] = {
        "name": "small",
        "dataset": {"name": "rows.jsonl" if isinstance(made, list) else "."},
        "tokenizer": TOKENIZER,
        "prompt_template": {"template": "{instruction}\n{output}", "label_column": "output"},
    }
    if dedup:
        settings["dedup"] = {} if dedup is True else dedup
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(settings | sections))
    return path


def built(config: Path, store: Path | None = None, workers: int = 2) -> tuple[Build, dict[str, StageReport]]:
    opened = ArtifactStore(store or config.parent / "store")
    build = Build(PipelineConfig.from_file(config), opened, ComputeEngine(workers), chunk_size=SMALL)
    return build, {report.name: report for report in build.run_all()}


def line(place: str) -> int:
    return int(place.rpartition(":")[2]) - 1


def dropped(build: Build) -> dict[int, tuple[int, str]]:
    """By line of each dropped row: the line of the row that is kept, and the code."""
    found = groups(build.store, "small")
    return {line(row.place): (line(group.kept), row.code) for group in found for row in group.repeats}


def test_the_same_and_similar_rows_go_each_with_the_row_that_stays(tmp_path: Path) -> None:
    build, reports = built(write(tmp_path, source()))
    report = reports[DEDUP]
    assert (report.rows_in, report.rows_out, report.rejected, report.filtered) == (700, 694, 0, 6)
    assert reports["sequences"].rows_out == 694
    assert dropped(build) == {
        **{row: (kept, DUPLICATE) for row, kept in SAME.items()},
        **{row: (kept, NEAR_DUPLICATE) for row, kept in NEAR.items()},
    }
    assert report.notices[0].startswith("6 of 700 rows repeat an earlier one: 3 are the same, 3 nearly")
    assert "18 bands of 7" in report.notices[1]
    reader = RowReader(build.store, "small", build.stages)
    assert [row for row in range(700) if "dropped by dedup" in reader.read(row).absence] == sorted({**SAME, **NEAR})
    assert "the same as an earlier row (fingerprint " in reader.read(100).absence


@pytest.mark.parametrize(
    ("dedup", "expected"),
    [
        ({"near": None}, SAME),
        ({"exact": None}, {**SAME, **NEAR}),
        ({"near": {"threshold": 1.0}}, SAME),
        ({"exact": "prompt", "near": None}, {**SAME, **NEAR}),
    ],
)
def test_settings_decide_what_repeats(tmp_path: Path, dedup: Any, expected: dict[int, int]) -> None:
    build, _ = built(write(tmp_path, source(), dedup))
    assert {row: kept for row, (kept, _) in dropped(build).items()} == expected


def test_train_loses_the_rows_of_other_splits(tmp_path: Path) -> None:
    train = source()
    test = [train[500], varied(train[510])]
    build, reports = built(write(tmp_path, {"train": train, "test": test}))
    found = groups(build.store, "small")
    assert sorted((group.kept, group.repeats[0].place) for group in found if group.split == "test") == [
        ("test.jsonl:1", "train.jsonl:501"),
        ("test.jsonl:2", "train.jsonl:511"),
    ]
    assert all(row.split == "train" for group in found for row in group.repeats)
    assert reports[DEDUP].filtered == 8


def test_chunks_that_lose_nothing_are_as_without_the_stage(tmp_path: Path) -> None:
    plain, before = built(write(tmp_path, source(), dedup=None))
    build, reports = built(write(tmp_path, source()))
    pairs = zip(plain.manifest("columns").chunks, build.manifest(DEDUP).chunks, strict=True)
    lost = [was.output != now.output for was, now in pairs]
    assert 0 < sum(lost) < len(lost)
    assert reports["prompts"].chunks - reports["prompts"].chunks_reused == sum(lost)
    _, back = built(write(tmp_path, source(), dedup=None))
    assert digests(back) == digests(before)
    assert [stage for stage in STAGES if back[stage].chunks_reused < back[stage].chunks] == []


def appended(made: list[Row]) -> list[Row]:
    return [*made, dict(made[30]), {"instruction": "Quite new", "output": "indeed " * 9}, varied(made[31])]


def first_deleted(made: list[Row]) -> list[Row]:
    return [row for number, row in enumerate(made) if number not in (20, 55)]


def edited(made: list[Row]) -> list[Row]:
    return [*made[:100], {**made[100], "output": "something else " * 12}, *made[101:]]


def inserted(made: list[Row]) -> list[Row]:
    return [{"instruction": "At the top", "output": "of all rows " * 3}, *made]


CHANGES: list[Callable[[list[Row]], list[Row]]] = [appended, first_deleted, edited, inserted]


@pytest.mark.parametrize(("change", "workers"), each(CHANGES, [1, 3]))
def test_a_changed_source_gives_what_a_new_build_gives(
    tmp_path: Path, change: Callable[[list[Row]], list[Row]], workers: int
) -> None:
    made = source()
    first, _ = built(write(tmp_path / "one", made))
    build, reports = built(write(tmp_path / "one", change(made)), workers=workers)
    cold, expected = built(write(tmp_path / "cold", change(made)))
    assert digests(reports) == digests(expected)
    assert dropped(build) == dropped(cold)
    before = {chunk.output for chunk in first.manifest(DEDUP).chunks}
    changed = [chunk for chunk in build.manifest(DEDUP).chunks if chunk.output not in before]
    assert reports["prompts"].chunks - reports["prompts"].chunks_reused == len({chunk.output for chunk in changed})
    assert reports[FINGERPRINTS].chunks - reports[FINGERPRINTS].chunks_reused <= 2


def test_swapped_files_give_what_a_new_build_gives(tmp_path: Path) -> None:
    made = source()
    splits = {"dataset": {"name": "*.jsonl"}}
    write(tmp_path / "one", {"a": made[:350], "b": made[350:]}, **splits)
    built(tmp_path / "one" / "small.yaml")
    build, reports = built(write(tmp_path / "one", {"a": made[350:], "b": made[:350]}, **splits))
    cold, expected = built(write(tmp_path / "cold", {"a": made[350:], "b": made[:350]}, **splits))
    assert digests(reports) == digests(expected)
    assert dropped(build) == dropped(cold) != {}


def test_a_deleted_first_row_brings_the_second_back(tmp_path: Path) -> None:
    made = source()
    built(write(tmp_path, made))
    build, reports = built(write(tmp_path, [*made[:7], *made[8:]]))
    assert 649 not in dropped(build)
    assert reports[DEDUP].filtered == 5


def test_rows_that_gc_dropped_are_read_again_to_compare_new_ones(tmp_path: Path) -> None:
    made = source()
    config = write(tmp_path, made, keep="sequences")
    build, _ = built(config)
    gc(tmp_path / "store")
    columns = build.manifest("columns").chunks
    assert all(build.store.objects.size(chunk.output) is None for chunk in columns)
    again, reports = built(write(tmp_path, appended(made), keep="sequences"))
    _, expected = built(write(tmp_path / "cold", appended(made), keep="sequences"))
    assert digests(reports) == digests(expected)
    assert {700, 702} <= dropped(again).keys()


def test_explain_says_what_waits_for_which_rows_go(tmp_path: Path) -> None:
    made = source()
    config = write(tmp_path, made)
    build, _ = built(config)
    assert {stage.state for stage in explain(build)} == {"hit"}
    write(tmp_path, appended(made))
    again = Build(PipelineConfig.from_file(config), build.store, chunk_size=SMALL)
    stages = {stage.name: stage for stage in explain(again)}
    assert any("waits for" in reason and FINGERPRINTS in reason for reason in stages[DEDUP].reasons), stages[DEDUP]


def test_evaluations_and_repeats_together(tmp_path: Path) -> None:
    made = source()
    (tmp_path / "asked").mkdir()
    item = made[20]["instruction"] + " " + " ".join(f"w{number}" for number in range(9))
    (tmp_path / "asked" / "items.txt").write_text(item + "\n")
    made[20] = {**made[20], "instruction": item}
    config = write(tmp_path, made, decontaminate={"against": ["asked/items.txt"]})
    build, reports = built(config)
    assert list(reports) == [*STAGES[:3], "decontaminate", FINGERPRINTS, DEDUP, *STAGES[3:]]
    assert reports["decontaminate"].filtered == 1
    assert dropped(build)[300] == (100, DUPLICATE)  # the row that both repeated is gone


def test_rows_without_words_stay(tmp_path: Path) -> None:
    made = [{"instruction": "?", "output": "..."}] * 5 + [{"instruction": "One", "output": "word"}] * 3
    build, reports = built(write(tmp_path, made + source(60)[:10]))
    assert [row for row in dropped(build) if row < 8] == [6, 7]
    assert reports[DEDUP].rows_out == 16


def test_messages_with_the_same_words_in_other_roles_or_with_other_labels_differ(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "Go on now."}, {"role": "assistant", "content": "No way."}]
    turned = [{**talk[0], "role": "system"}, {"role": "user", "content": "Hi"}, talk[1]]
    lines = [{"messages": talk}, {"messages": turned}, {"messages": talk}]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in lines))
    settings = {
        "dataset": {"name": "rows.jsonl"},
        "tokenizer": {**TOKENIZER, "train": {"vocab_size": 300}, "chat_template": "chatml"},
        "dedup": {"near": None},
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(settings))
    build, _ = built(tmp_path / "small.yaml")
    assert dropped(build) == {2: (0, DUPLICATE)}


def talk(answer: Any, **more: Any) -> dict[str, Any]:
    """A row of a question and an answer, a text or a message."""
    asked = {"role": "user", "content": "Book the flight that we talked about this morning for me, please"}
    said = {"role": "assistant", "content": answer} if isinstance(answer, str) else {"role": "assistant", **answer}
    return {"messages": [*more.pop("before", []), asked, said], **more}


def call(name: str = "book", arguments: Any = None, number: int = 1) -> dict[str, Any]:
    function = {"name": name, "arguments": {"to": "Oslo"} if arguments is None else arguments}
    return {"content": "Now.", "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}]}


def tool(name: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}]


RULES = " ".join(f"Rule {n}: answer with care, and cite what the manual says on topic {n}." for n in range(20))
SYSTEM = [{"role": "system", "content": RULES}]
DIFFERENT: dict[str, list[dict[str, Any]]] = {
    "arguments": [talk(call(arguments={"to": city})) for city in ("Oslo", "Lima", "Bonn")],
    "arguments that are text": [talk(call(arguments=json.dumps({"to": city}))) for city in ("Oslo", "Lima")],
    "numbers of calls": [talk(call(arguments={"seats": seats})) for seats in (1, 2, 3)],
    "names of calls": [talk(call(name)) for name in ("book", "cancel")],
    "a call and none": [talk(call()), talk("Now.")],
    "calls in a rejected answer": [
        {"prompt": [{"role": "user", "content": "Book the flight that we talked about"}],
         "chosen": [{"role": "assistant", **call()}],
         "rejected": [{"role": "assistant", **call(arguments={"to": city})}]}
        for city in ("Lima", "Bonn")
    ],
    "tools": [talk("I cannot tell you that.", tools=tool(name)) for name in ("search", "mail")],
    "tools and none": [talk("I cannot tell you that.", tools=tool("mail")), talk("I cannot tell you that.", tools=[])],
    "template variables": [
        talk("I cannot tell you that.", chat_template_kwargs={"enable_thinking": thinks}) for thinks in (True, False)
    ],
    "labels": [
        {"prompt": "Explain the tide at the coast", "completion": "The moon pulls the water.", "label": label}
        for label in (True, False)
    ],
    "messages that are trained": [talk({"content": "I cannot tell that.", "train": train}) for train in (True, False)],
    "which message is trained": [
        {"messages": [{"role": "user", "content": "Count the ships in the harbour"},
                      {"role": "assistant", "content": "There are five of them.", "train": first},
                      {"role": "user", "content": "Are you sure of that?"},
                      {"role": "assistant", "content": "There are five of them.", "train": not first}]}
        for first in (True, False)
    ],
    "system messages": [
        talk("I cannot tell you that.", before=[{"role": "system", "content": f"You are {who}."}]) for who in ("A", "B")
    ],
    "questions under one system message": [
        {"messages": [*SYSTEM, {"role": "user", "content": f"What is the capital of {land}?"},
                      {"role": "assistant", "content": city}]}
        for land, city in (("Peru", "Lima"), ("Chad", "N'Djamena"), ("Fiji", "Suva"))
    ],
}  # fmt: skip
"""Rows that differ in one part."""


@pytest.mark.parametrize(("part", "dedup"), each(DIFFERENT, [{"near": None}, {"exact": None}]))
def test_rows_that_differ_in_any_part_are_other_rows(tmp_path: Path, part: str, dedup: dict[str, Any]) -> None:
    """Each is there twice: the second of both goes."""
    lines = [*DIFFERENT[part], *DIFFERENT[part]]
    build = built_of(tmp_path, lines, dedup)
    count = len(lines) // 2
    code = DUPLICATE if "near" in dedup else NEAR_DUPLICATE
    assert dropped(build) == {count + number: (number, code) for number in range(count)}


def test_ids_of_calls_do_not_make_similar_rows_different(tmp_path: Path) -> None:
    lines = [talk(call(number=number)) for number in (1, 2)]
    assert dropped(built_of(tmp_path, lines, {"exact": None})) == {1: (0, NEAR_DUPLICATE)}


def test_prompts_with_other_calls_before_them_are_other_prompts(tmp_path: Path) -> None:
    lines = [
        {"prompt": [{"role": "user", "content": "Go"}, {"role": "assistant", **call(arguments={"to": city})},
                    {"role": "tool", "content": "ok"}]}
        for city in ("Oslo", "Lima", "Oslo")
    ]  # fmt: skip
    build = built_of(tmp_path, lines, {"exact": "prompt", "near": None}, prompt_template={"format_type": "prompt_only"})
    assert dropped(build) == {2: (0, DUPLICATE)}


def built_of(folder: Path, lines: list[dict[str, Any]], dedup: dict[str, Any], **sections: Any) -> Build:
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in lines))
    tokenizer = {**TOKENIZER, "train": {"vocab_size": 300}, "chat_template": "chatml", "max_length": 4096}
    settings = {"dataset": {"name": "rows.jsonl"}, "tokenizer": tokenizer, "dedup": dedup, **sections}
    (folder / "small.yaml").write_text(yaml.safe_dump(settings))
    build = Build(PipelineConfig.from_file(folder / "small.yaml"), ArtifactStore(folder / "store"))
    for _ in build.run_stages([RAW, SCHEMA, COLUMNS, FINGERPRINTS, DEDUP]):
        pass
    return build


@pytest.mark.parametrize(
    ("dedup", "message"),
    [
        ({"exact": None, "near": None}, r"dedup: has no effect: exact and near are null"),
        ({"near": {"threshold": 0.4}}, r"dedup\.near\.threshold.*greater than or equal to 0\.5"),
        ({"near": {"treshold": 0.9}}, r"treshold.*did you mean threshold"),
        ({"exact": "answer"}, r"dedup\.exact.*row.*prompt"),
    ],
)
def test_mistakes_have_a_line_and_a_remedy(tmp_path: Path, dedup: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built(write(tmp_path, source(20), dedup))


def test_prompts_of_plain_text_cannot_be_compared(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("One line.\nAnother line.\n")
    settings = {"dataset": {"name": "rows.txt"}, "tokenizer": TOKENIZER, "dedup": {"exact": "prompt"}}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(ConfigError, match=r"dedup\.exact: these rows have no prompt.*set exact: row"):
        built(tmp_path / "small.yaml")


def test_the_command_lists_kept_rows_with_those_that_repeat_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(tmp_path, source())
    build, _ = built(config)
    store = ["--store", str(tmp_path / "store")]
    assert main(["dropped", str(config), *store]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "dedup: 6 of 700 rows repeat 3 others"
    assert lines[1] == "  rows.jsonl:21 is kept, of train; 3 repeat it:"
    assert lines[2].startswith("    rows.jsonl:101 100%: 20: ")
    assert main(["dropped", str(config), *store, "--rows", "1"]) == 0
    few = capsys.readouterr().out.splitlines()
    assert few == [*lines[:5], "  and 2 more kept rows (--rows, --json)"]
    assert main(["dropped", str(config), *store, "--between", "0.8", "0.99", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)[DEDUP]
    assert sorted(line(row["place"]) for group in listed for row in group["dropped"]) == sorted(NEAR)
    write(tmp_path, inserted(source()))
    built(config)
    assert main(["dropped", str(config), *store]) == 0
    assert "  rows.jsonl:22 is kept, of train; 3 repeat it:" in capsys.readouterr().out.splitlines()
    checks = {f"{check.stage}/{check.name}": check for check in stage_checks(build.config)}
    assert all(checks[f"{stage}/contract"].run(Checked(build)).passed for stage in (FINGERPRINTS, DEDUP))


def test_the_order_of_workers_changes_nothing(tmp_path: Path) -> None:
    made = source(400)
    random.Random(1).shuffle(made)
    _, one = built(write(tmp_path, made), tmp_path / "one", workers=1)
    _, four = built(write(tmp_path, made), tmp_path / "four", workers=4)
    assert digests(one) == digests(four)


def test_diff_lists_rows_that_a_setting_drops_or_brings_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, store = source(), tmp_path / "store"
    exact, _ = built(write(tmp_path, made, {"near": None}, name="exact"), store)
    both, _ = built(write(tmp_path, made, name="both"), store)
    (split,) = diff_datasets(both.store, "exact", "both").splits
    assert (split.rows["dropped"], "restored" in split.rows) == (3, False)
    assert [line(place) for place in split.examples["dropped"]] == sorted(NEAR)
    (back,) = diff_datasets(exact.store, "both", "exact").splits
    assert (back.rows["restored"], "dropped" in back.rows, back.rows["added"]) == (3, False, 0)
    assert main(["diff", "exact", "both", "--store", str(store)]) == 0
    assert "train, dropped 3: e.g. rows.jsonl:201, rows.jsonl:202, rows.jsonl:641" in capsys.readouterr().out


def test_rows_of_another_dataset_come_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, store = source(), tmp_path / "store"
    built(write(tmp_path / "chat", made, name="chat"), store)
    more = [made[500], varied(made[510]), *({"instruction": f"Own {n}", "output": f"word{n} " * 9} for n in range(9))]
    config = write(tmp_path / "more", [*more, dict(more[5])], {"against": ["chat"]}, name="more")
    build, reports = built(config, store)
    assert reports[DEDUP].filtered == 3
    found = {group.kept: [line(row.place) for row in group.repeats] for group in groups(build.store, "more", ["chat"])}
    assert found == {"chat: rows.jsonl:501": [0], "chat: rows.jsonl:511": [1], "rows.jsonl:6": [11]}
    assert main(["dropped", str(config), "--store", str(store)]) == 0
    assert "  chat: rows.jsonl:501 is kept, of train; 1 repeat it:" in capsys.readouterr().out.splitlines()
    _, again = built(config, store)
    assert all(report.chunks_reused == report.chunks for report in again.values())
    built(write(tmp_path / "chat", made[:505], name="chat"), store)
    build, reports = built(config, store)
    assert reports[DEDUP].filtered == 2
    assert {chunk.output for chunk in build.manifest("columns").chunks}


def test_another_dataset_must_have_the_same_fingerprints(tmp_path: Path) -> None:
    store = tmp_path / "store"
    config = write(tmp_path / "more", source(50), {"against": ["chat"]}, name="more")
    with pytest.raises(ConfigError, match=r"against\.0: chat is not built with a section dedup; .*build it first"):
        built(config, store)
    built(write(tmp_path / "chat", source(60), {"near": {"threshold": 0.9}}, name="chat"), store)
    with pytest.raises(ConfigError, match=r"dedup\.against\.0: chat is built with other dedup settings; set the same"):
        built(config, store)
    write(tmp_path / "more", source(50), {"against": ["more"]}, name="more")
    with pytest.raises(ConfigError, match=r"dedup\.against: more is this dataset"):
        PipelineConfig.from_file(config)


def test_a_mixture_builds_what_others_repeat_first(tmp_path: Path, tokenizer_folder: Path) -> None:
    named = {"tokenizer": {"name_or_path": str(tokenizer_folder), "max_length": 256}}
    for name, made, dedup in [("a", source(80), {"against": ["b"]}), ("b", source(60), {})]:
        write(tmp_path / name, made, dedup or True, name=name, **named)
        settings = yaml.safe_load((tmp_path / name / "small.yaml").read_text())
        settings["dataset"]["name"] = f"{name}/rows.jsonl"
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "mix.yaml").write_text(yaml.safe_dump({"mixture": [{"dataset": "a"}, {"dataset": "b"}]}))
    assert main(["build", str(tmp_path / "mix.yaml"), "--store", str(tmp_path / "store")]) == 0
    manifest = ArtifactStore(tmp_path / "store").manifest("a", DEDUP)
    assert (manifest.total("rows_in"), manifest.total("filtered")) == (80, 60)


def test_datasets_that_come_before_each_other_are_faulty(tmp_path: Path) -> None:
    for name, other in [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]:
        settings = {"dataset": {"name": "x.jsonl"}, "dedup": {"against": [other]}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(settings))
    found = read_folder(tmp_path)
    assert sorted(path.stem for path in found.faults) == ["a", "b", "c"]
    assert "each of a and b and c would come before the others" in str(found.faults[tmp_path / "a.yaml"])
    assert [config.dataset_name for config in found.configs.values()] == ["d"]


def test_a_changed_threshold_is_named(tmp_path: Path) -> None:
    made = source()
    build, _ = built(write(tmp_path, made))
    config = write(tmp_path, made, {"near": {"threshold": 0.79}})
    stages = explain(Build(PipelineConfig.from_file(config), build.store, chunk_size=SMALL))
    (reasons,) = (stage.reasons for stage in stages if stage.name == DEDUP)
    assert reasons == ("waits for columns and fingerprints: up to 11 of 11 chunks",)
    now = Build(PipelineConfig.from_file(config), build.store, chunk_size=SMALL)
    assert "dedup.near.threshold: 0.8 → 0.79" in (outdated(now, 1) or "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stage", "decontaminate"], "no section decontaminate"),
        (["--stage", "decontaminate", "--between", "0.8", "0.9"], "--between: is for repeated rows"),
        (["--between", "0.9", "0.8"], "--between: 0.9 is more than 0.8"),
    ],
)
def test_options_without_effect_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    config = write(tmp_path, source())
    built(config)
    assert main(["dropped", str(config), "--store", str(tmp_path / "store"), *options]) == 2
    assert message in capsys.readouterr().err
