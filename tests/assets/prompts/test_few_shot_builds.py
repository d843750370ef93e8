"""Few-shot examples in builds: from a file or the row's own chunk, with the same bytes for any number of workers."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from support.canonical_tables import Row
from support.datasets_on_disk import TOKENIZER, write_dataset
from support.datasets_on_disk import rows as instructions
from support.loaded_rows import rows_of
from support.paths import TESTS
from support.processes import DEADLINE, started
from tokenloom import DataPipeline
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.report import StageReport
from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, DataValidationError
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.tokenizers import resolve_tokenizer

SMALL = ChunkSize(target=12_000, maximum=48_000)


def build(config: Path, store: Path, workers: int = 2) -> tuple[Build, dict[str, StageReport]]:
    made = Build(PipelineConfig.from_file(config), ArtifactStore(store), ComputeEngine(workers), chunk_size=SMALL)
    return made, {report.name: report for report in made.run_all()}


FIXED = [{"instruction": f"example {n}?", "input": "", "output": f"answer {n}"} for n in range(4)]


def write_examples(folder: Path, rows: Sequence[Row] = FIXED, name: str = "shots.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder / name


def few(count: int = 2, source: str | None = None, seed: int = 0) -> dict[str, Any]:
    """A custom prompt with examples."""
    template = "### Instruction:\n{instruction}\n### Response:\n{output}\n"
    few_shot = {"count": count, "source": source, "seed": seed}
    return {"template": template, "label_column": "output", "few_shot": few_shot}


def texts(made: Build) -> list[str]:
    objects = (made.store.objects.get(chunk.output) for chunk in made.manifest("prompts").chunks)
    return [text for table in objects for text in table["text"].to_pylist()]


def blocks(text: str) -> list[str]:
    return re.findall(r"### Instruction:\n(.*?)\n### Response:", text)


def test_examples_from_a_file_keep_its_order(tmp_path: Path) -> None:
    write_examples(tmp_path)
    made, _ = build(write_dataset(tmp_path, 60, prompt_template=few(4, "shots.jsonl")), tmp_path / "store")
    own = [row["instruction"] for row in instructions(60)]
    assert [blocks(text) for text in texts(made)] == [[*(row["instruction"] for row in FIXED), asked] for asked in own]


CHATS = {
    "messages": {"messages": [{"role": "user", "content": "one?"}, {"role": "assistant", "content": "1"}]},
    "history": {"prompt": "two?", "completion": "2", "history": [["one?", "1"]]},
}


@pytest.mark.parametrize("form", CHATS)
def test_conversations_from_a_file_are_examples(tmp_path: Path, form: str) -> None:
    shot = json.loads(json.dumps(CHATS[form]).replace("?", "!"))
    prompt = {"format_type": "chat", "few_shot": {"count": 1, "source": "shots.jsonl"}}
    tokenizer = {**TOKENIZER, "chat_template": "{% for m in messages %}{{ m.content }}|{% endfor %}"}
    config = write_dataset(tmp_path, tokenizer=tokenizer, prompt_template=prompt)
    write_examples(tmp_path, [CHATS[form]] * 3, "small.jsonl")
    write_examples(tmp_path, [shot])
    made, _ = build(config, tmp_path / "store")
    said = {"messages": "one?|1|", "history": "one?|1|two?|2|"}[form]
    assert {*texts(made)} == {said.replace("?", "!") + said}
    write_examples(tmp_path, [{"title": "none"}])
    with pytest.raises(ConfigError, match=r"shots\.jsonl has no column \w+, which the dataset's \w+ uses"):
        build(config, tmp_path / "store")


def test_a_row_never_sees_its_own_prompt_among_a_files_examples(tmp_path: Path) -> None:
    write_examples(tmp_path, [*FIXED, *instructions(3)])
    made, _ = build(write_dataset(tmp_path, 30, prompt_template=few(6, "shots.jsonl")), tmp_path / "store")
    found = [blocks(text) for text in texts(made)]
    assert len(found) == 30
    assert all(len(set(asked)) == 7 for asked in found)


def test_the_key_of_prompts_covers_the_files_content_not_its_name(tmp_path: Path) -> None:
    write_examples(tmp_path)
    config = write_dataset(tmp_path, 100, prompt_template=few(2, "shots.jsonl"))
    _, cold = build(config, tmp_path / "store")
    (tmp_path / "shots.jsonl").rename(tmp_path / "moved.jsonl")
    config = write_dataset(tmp_path, 100, prompt_template=few(2, "moved.jsonl"))
    _, moved = build(config, tmp_path / "store")
    assert moved["prompts"].chunks_reused == moved["prompts"].chunks
    write_examples(tmp_path, [*FIXED[1:], {**FIXED[0], "output": "another"}], "moved.jsonl")
    _, edited = build(config, tmp_path / "store")
    assert edited["columns"].chunks_reused == edited["columns"].chunks
    assert edited["prompts"].chunks_reused == 0
    assert edited["prompts"].digest != cold["prompts"].digest


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"no such file: shots\.jsonl; did you mean shot\.jsonl\?"),
        (FIXED[:1], r"shots\.jsonl has 1 examples, count: 2 needs more; add some"),
        ([{"question": "a", "answer": "b"}] * 2, r"shots\.jsonl has no column instruction, .* it has question, answer"),
        ([*FIXED, {"instruction": "a", "output": ""}], r"shots\.jsonl, example 5: output is empty"),
        ("{", r"shots\.jsonl, example 1: "),
        ("", r"shots\.jsonl has no examples"),
    ],
)
def test_a_wrong_file_of_examples_is_a_fault_at_its_line(tmp_path: Path, content: Any, message: str) -> None:
    write_examples(tmp_path, name="shot.jsonl")
    if isinstance(content, str):
        (tmp_path / "shots.jsonl").write_text(content)
    elif content is not None:
        write_examples(tmp_path, content)
    config = write_dataset(tmp_path, 20, prompt_template=few(2, "shots.jsonl"))
    line = next(n for n, text in enumerate(config.read_text().splitlines(), 1) if "source:" in text)
    with pytest.raises(ConfigError, match=rf"small\.yaml:{line}: prompt_template\.few_shot\.source: .*{message}"):
        build(config, tmp_path / "store")


def test_a_chunk_with_too_few_rows_is_rejected(tmp_path: Path) -> None:
    config = write_dataset(tmp_path, 3, prompt_template=few(3))
    with pytest.raises(
        DataValidationError, match=r"3 × too_few_examples .*3 examples.*few_shot\.count.*few_shot\.source"
    ):
        build(config, tmp_path / "store")


def test_examples_come_from_the_rows_chunk_and_split(tmp_path: Path) -> None:
    dataset = {"name": "small.jsonl", "val_split": 0.3}
    made, reports = build(write_dataset(tmp_path, 300, dataset=dataset, prompt_template=few(3)), tmp_path / "store")
    assert reports["prompts"].chunks > 4
    for raw, prompts in zip(made.manifest("raw").chunks, made.manifest("prompts").chunks, strict=True):
        there = set(made.store.objects.get(raw.output)["instruction"].to_pylist())
        for text in made.store.objects.get(prompts.output)["text"].to_pylist():
            asked = blocks(text)
            assert len(set(asked)) == 4
            assert set(asked) <= there


@pytest.mark.parametrize("source", [None, "shots.jsonl"])
def test_the_seed_determines_the_bytes(tmp_path: Path, source: str | None) -> None:
    write_examples(tmp_path)
    config = write_dataset(tmp_path, 200, prompt_template=few(2, source))
    digests = {build(config, tmp_path / f"w{workers}", workers)[1]["sequences"].digest for workers in (1, 2, 4)}
    assert len(digests) == 1
    other = write_dataset(tmp_path, 200, prompt_template=few(2, source, seed=1))
    assert build(other, tmp_path / "w1")[1]["prompts"].digest not in digests


_KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from support.builds import build
from tokenloom.assets.stage.definition import ChunkSize
build(Path(sys.argv[1]), Path(sys.argv[2]), size=ChunkSize(target=12_000, maximum=48_000))
"""


def test_a_killed_build_resumes_to_the_same_digests(tmp_path: Path) -> None:
    config = write_dataset(tmp_path, 600, prompt_template=few(3))
    whole = {name: report.digest for name, report in build(config, tmp_path / "whole")[1].items()}
    with started([sys.executable, "-c", _KILLED, config, tmp_path / "killed", TESTS]) as process:
        deadline = time.monotonic() + DEADLINE
        while not any((tmp_path / "killed" / "actions").glob("*/*")):
            assert process.poll() is None and time.monotonic() < deadline, "the build stored nothing"
            time.sleep(0.01)
    resumed = build(config, tmp_path / "killed")[1]
    assert {name: report.digest for name, report in resumed.items()} == whole


def test_an_edited_row_changes_only_its_chunk(tmp_path: Path) -> None:
    config = write_dataset(tmp_path, 900, prompt_template=few(2))
    made, before = build(config, tmp_path / "store")
    assert before["prompts"].chunks > 5
    path = tmp_path / "small.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    edited = {**json.loads(lines[200]), "output": "quite another answer"}
    path.write_text("\n".join([*lines[:200], json.dumps(edited), *lines[201:]]) + "\n", encoding="utf-8")
    again, after = build(config, tmp_path / "store")
    assert 1 <= after["prompts"].chunks - after["prompts"].chunks_reused <= 2
    old, new = ([chunk.output for chunk in found.manifest("prompts").chunks] for found in (made, again))
    assert 1 <= len(set(new) - set(old)) <= 2


def test_streaming_draws_the_examples_of_the_built_dataset(tmp_path: Path, tokenizer_folder: Path) -> None:
    sections: dict[str, Any] = {
        "tokenizer": {"name_or_path": str(tokenizer_folder), "max_length": 512},
        "dataloader": {"shuffle": "none", "batch_size": 4},
        "prompt_template": few(2),
    }
    config = write_dataset(tmp_path, 60, **sections)
    pipeline = DataPipeline.from_config(config, store=tmp_path / "store").unwrap()
    built = rows_of(pipeline.get_dataloader("train").unwrap())
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    settings["dataset"]["streaming"] = True
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    streaming = DataPipeline.from_config(config, store=tmp_path / "unused").unwrap()
    found = [rows_of(streaming.get_dataloader("train", rank=rank, world_size=2).unwrap()) for rank in (0, 1)]
    assert Counter(row for rows in found for row in rows) == Counter(built)


def test_alpaca_rows_never_see_their_own_answer(real_data: Path, tokenizer_folder: Path) -> None:
    rows = json.loads((real_data / "instruct" / "alpaca_data.json").read_text(encoding="utf-8"))[:3000]
    config = PipelineConfig.from_mapping(
        {
            "dataset": {"name": "x"},
            "tokenizer": {"name_or_path": str(tokenizer_folder)},
            "prompt_template": {
                "template": "<q>{instruction}\n{input}<a>{output}<e>",
                "label_column": "output",
                "few_shot": {"count": 3},
            },
        }
    )
    table = pa.Table.from_pylist(rows).append_column(ROW, pa.array(range(len(rows)), pa.int32()))
    roles = {name: name for name in ("instruction", "input", "output")}
    out = renderer(config, {"form": "fields", "roles": roles}, resolve_tokenizer(config))(table)
    assert out.table.num_rows == len(rows)
    asked = [(row["instruction"] + "\n" + row["input"], row["output"]) for row in rows]
    known = set(asked)
    for made in out.table.to_pylist():
        found = re.findall(r"<q>(.*?)<a>(.*?)<e>", made["text"].replace("</s>", ""), re.DOTALL)
        assert len(found) == 4
        assert found[-1] == asked[made[ROW]]
        assert set(found) <= known
        assert len({prompt for prompt, _ in found}) == 4
