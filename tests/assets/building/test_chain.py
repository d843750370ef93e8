"""A build that takes chunks through several stages at once leaves what a build of one stage after the other leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.builds import frozen_tokenizer
from support.datasets_on_disk import PROMPT, STAGES, TOKENIZER, rows, write_dataset
from tokenloom.assets.building import build as building
from tokenloom.assets.building.build import Build
from tokenloom.assets.columns.stage import ColumnsStage
from tokenloom.assets.prompts.stage import PromptsStage
from tokenloom.assets.sequences.stage import SequencesStage
from tokenloom.assets.sidecars.stage import SidecarsStage
from tokenloom.assets.stage.definition import ChunkSize, Work
from tokenloom.assets.tokens.stage import TokensStage
from tokenloom.config import PipelineConfig
from tokenloom.errors import DataValidationError, StoreError
from tokenloom.resources.engines.engine import ComputeEngine, Shared
from tokenloom.resources.store import ArtifactStore

SMALL = ChunkSize(8 << 10, 32 << 10)


@pytest.fixture(autouse=True)
def working_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds prepare later stages ahead, as they do for large chunks; those of other tests do not."""
    monkeypatch.setattr(building, "LARGE_BYTES", 0)


def opened(config: Path, store: Path, progress: Callable[[Any], None] | None = None) -> Build:
    return Build(PipelineConfig.from_file(config), ArtifactStore(store), chunk_size=SMALL, on_progress=progress)


def published(build: Build) -> dict[str, tuple[Any, ...]]:
    """Return what each published manifest says."""
    found = {}
    for stage in STAGES:
        if (manifest := build.latest_manifest(stage)) is not None:
            found[stage] = (manifest.chunks, manifest.facts, manifest.counters, manifest.notes, manifest.parts)
    return found


@pytest.fixture(params=["given", "trained", "drop_turns"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Datasets whose stages wait for each other in different places."""
    trained = write_dataset(tmp_path)
    if request.param == "trained":
        return trained
    tokenizer = frozen_tokenizer(tmp_path)
    if request.param == "given":
        return write_dataset(tmp_path, tokenizer=tokenizer)
    turns = [
        {"messages": [{"role": role, "content": row[name]} for role, name in TURNS] * (1 + number % 3)}
        for number, row in enumerate(rows(120))
    ]
    chats = write_dataset(
        tmp_path / "chats",
        tokenizer={**tokenizer, "max_length": 64, "chat_template": TEMPLATE},
        prompt_template={"format_type": "chat"},
        length={"strategy": "drop_turns"},
    )
    (chats.parent / "small.jsonl").write_text("\n".join(map(json.dumps, turns)), encoding="utf-8")
    return chats


TURNS = (("user", "instruction"), ("assistant", "output"))
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}assistant: {% endif %}"


def test_the_same_manifests_as_stage_by_stage(tmp_path: Path, config: Path) -> None:
    together, apart = opened(config, tmp_path / "a"), opened(config, tmp_path / "b")
    reports = list(together.run_all())
    alone = [apart.run(stage) for stage in STAGES]
    assert [report.name for report in reports] == list(STAGES)
    assert len(together.manifest("raw").chunks) > 3
    for one, other in zip(reports, alone, strict=True):
        assert {**vars(one), "seconds": 0} == {**vars(other), "seconds": 0}
    assert published(together) == published(apart)
    warm = list(opened(config, tmp_path / "a").run_all())
    assert all(report.chunks_reused == report.chunks for report in warm)


@pytest.mark.parametrize("config", ["given", "trained"], indirect=True)
def test_a_chunk_goes_on_before_the_stage_is_complete(tmp_path: Path, config: Path) -> None:
    seen: list[tuple[str, int]] = []
    list(opened(config, tmp_path / "store", lambda progress: seen.append((progress.stage, progress.chunks))).run_all())
    waits = [] if "train" not in config.read_text() else ["prompts"]
    for before, after in (("raw", "schema"), ("columns", "prompts"), ("prompts", "tokens"), ("tokens", "sequences")):
        follows = seen.index((after, 1)) < max(place for place, (stage, _) in enumerate(seen) if stage == before)
        assert follows == (before not in waits)


def failing(stage: type, where: str) -> Callable[[Any, Any], Work]:
    """Return a `prepare` whose work fails at chunks with some text."""
    prepare = stage.prepare

    def prepared(self: Any, context: Any) -> Work:
        work = prepare(self, context)

        def compute(table: Any) -> Any:
            if where == "any" or where in str(table.slice(0, 1).to_pylist()):
                raise DataValidationError(f"{stage.name} fails")
            return work.compute(table)

        chunks: Iterator[Any] = work.chunks  # pyright: ignore[reportAssignmentType]
        return Work(chunks, compute, work.sides, work.settings, work.notes)

    return prepared


@pytest.mark.parametrize(
    ("config", "stage"),
    [("given", PromptsStage), ("given", TokensStage), ("trained", SequencesStage), ("drop_turns", SequencesStage)],
    indirect=["config"],
)
def test_a_failure_leaves_the_stages_before_it_published(
    tmp_path: Path, config: Path, stage: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "prepare", failing(stage, "any"))
    together, apart = opened(config, tmp_path / "a"), opened(config, tmp_path / "b")
    with pytest.raises(DataValidationError, match=f"{stage.name} fails") as raised:
        list(together.run_all())
    with pytest.raises(DataValidationError) as alone:
        for name in STAGES:
            apart.run(name)
    before = STAGES[: STAGES.index(stage.name)]
    assert str(raised.value) == str(alone.value)
    assert [*published(apart)] == list(before)
    assert published(together) == published(apart)


@pytest.mark.parametrize("config", ["given", "trained"], indirect=True)
@pytest.mark.parametrize("stage", [PromptsStage, TokensStage])
def test_a_stage_that_cannot_be_prepared_leaves_those_before_it_published_and_reported(
    tmp_path: Path, config: Path, stage: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, context: Any) -> Work:
        raise DataValidationError("cannot be prepared")

    monkeypatch.setattr(stage, "prepare", refuse)
    built = opened(config, tmp_path / "store")
    reported: list[str] = []
    with pytest.raises(DataValidationError, match="cannot be prepared"):
        reported.extend(report.name for report in built.run_all())
    assert [*published(built)] == reported == list(STAGES[: STAGES.index(stage.name)])


def test_a_failure_of_sidecars_is_reported_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SidecarsStage, "prepare", failing(SidecarsStage, "any"))
    config = write_dataset(tmp_path, dataset={"name": "small.jsonl", "keep_columns": ["output"]})
    built = opened(config, tmp_path / "store")
    with pytest.raises(DataValidationError, match="sidecars fails"):
        list(built.run_all())
    assert [*published(built)] == list(STAGES[:-1])


def test_a_failure_upstream_is_the_one_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts fails at the first chunk, columns at a later one: columns would never have let prompts start."""
    monkeypatch.setattr(PromptsStage, "prepare", failing(PromptsStage, "any"))
    monkeypatch.setattr(ColumnsStage, "prepare", failing(ColumnsStage, "'instruction': '2"))
    built = opened(write_dataset(tmp_path), tmp_path / "store")
    with pytest.raises(DataValidationError, match="columns fails"):
        list(built.run_all())
    assert [*published(built)] == ["raw", "schema"]


def test_too_many_rejects_end_a_build_early_with_exact_counts(tmp_path: Path) -> None:
    lines = [{**row, "output": ""} if number > 40 else row for number, row in enumerate(rows(300))]
    config = write_dataset(tmp_path, prompt_template=PROMPT, tokenizer=TOKENIZER)
    (tmp_path / "small.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    seen: list[str] = []
    built = opened(config, tmp_path / "store", lambda progress: seen.append(progress.stage))
    with pytest.raises(DataValidationError, match="259 of 300 rows rejected"):
        list(built.run_all())
    assert [*published(built)] == ["raw", "schema"]
    assert 0 < seen.count("prompts") < len(built.manifest("raw").chunks)


@pytest.mark.parametrize("dropped", ["raw", "columns", "prompts", "tokens"])
@pytest.mark.parametrize("config", ["given"], indirect=True)
def test_dropped_outputs_are_computed_again_where_a_chain_needs_them(
    tmp_path: Path, config: Path, dropped: str
) -> None:
    """Without the outputs of `dropped` and of all stages before it, and without the actions of the stage after it."""
    cold = opened(config, tmp_path / "store")
    list(cold.run_all())
    expected, store = published(cold), cold.store
    missing = [name for name in ("raw", "columns", "prompts", "tokens") if STAGES.index(name) <= STAGES.index(dropped)]
    following = next(name for name in STAGES if dropped in stages_above(name))
    for chunk in cold.manifest(following).chunks:
        store.actions.delete(chunk.key)
    for name in missing:
        for chunk in cold.manifest(name).chunks:
            store.objects.delete(chunk.output)
    text = config.read_text(encoding="utf-8")
    config.write_text(f"{text}keep: sequences\n", encoding="utf-8")
    again = opened(config, tmp_path / "store")
    reports = {report.name: report for report in again.run_all()}
    assert reports[following].chunks_reused < reports[following].chunks
    assert {name: found[0] for name, found in published(again).items()} == {
        n: found[0] for n, found in expected.items()
    }


def stages_above(name: str) -> tuple[str, ...]:
    from tokenloom.assets.building.chain import stage_named

    return stage_named(name).upstream


def test_a_stage_in_progress_is_completed_when_it_is_asked_for(tmp_path: Path) -> None:
    built = opened(write_dataset(tmp_path), tmp_path / "store")
    reports = built.run_all()
    assert next(reports).name == "raw"
    assert built.manifest("raw").total("rows_out") == 300
    with pytest.raises(StoreError):
        built.manifest("sequences")


class PlacesEngine(ComputeEngine):
    """An engine that notes the `place` of each item, as the Ray engine does for its messages."""

    def __init__(self) -> None:
        super().__init__(2)
        self.places: list[str] = []

    def map(self, function: Callable[[Any], Any], items: Iterable[Any], store: Shared | None = None) -> Iterator[Any]:
        def noted() -> Iterator[Any]:
            for item in items:
                self.places.append(item.place)
                yield item

        return super().map(function, noted(), store)


def test_an_engine_is_told_the_first_line_of_each_chunk(tmp_path: Path) -> None:
    config, engine = PipelineConfig.from_file(write_dataset(tmp_path)), PlacesEngine()
    build = Build(config, ArtifactStore(tmp_path / "store"), engine, chunk_size=SMALL)
    build.run("raw")
    lines = [chunk.rows_in for chunk in build.manifest("raw").chunks]
    assert len(lines) > 2
    assert engine.places == [f"small.jsonl:{1 + sum(lines[:before])}" for before in range(len(lines))]
