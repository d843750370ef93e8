"""Each stage's contract: a build and pandera accept and refuse the same tables."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import get_ident
from typing import Any

import pyarrow as pa
import pytest
from pandera.errors import SchemaErrors
from pandera.pyarrow import DataFrameSchema

from support.datasets_on_disk import write_dataset
from support.image_rows import Oracle, made_rows, write_lines, write_pictures, write_yaml
from support.processes import run
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.chain import STAGES, stage_named
from tokenloom.assets.columns.contract import CONTRACTS
from tokenloom.assets.stage.contract import Contract
from tokenloom.assets.stage.definition import validate
from tokenloom.assets.stage.forms import FORMS
from tokenloom.assets.stage.names import MEDIA
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("built")
    (folder / "items.jsonl").write_text('{"prompt": "Which river is the longest one of Germany?"}\n')
    config = write_dataset(folder, 60, decontaminate={"against": ["items.jsonl"]}, dedup={})
    build = Build(PipelineConfig.from_file(config), ArtifactStore(folder / "store"))
    list(build.run_all())
    return build


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A build of rows with images."""
    folder = tmp_path_factory.mktemp("pictured")
    write_pictures(folder, 5)
    write_lines(folder / "rows.jsonl", [{"messages": some} for some in made_rows(20, 0, 5, answers=False)])
    processor = Oracle("llava", "parts").save(folder / "processor")
    build = Build(
        PipelineConfig.from_file(write_yaml(folder, "rows.jsonl", processor)), ArtifactStore(folder / "store")
    )
    list(build.run_all())
    return build


def output(build: Build, stage: str) -> pa.Table:
    return build.store.objects.get(build.manifest(stage).chunks[0].output)


def by_pandera(contract: Contract, table: pa.Table) -> bool:
    """Return whether pandera accepts a table."""
    try:
        contract.schema().validate(table, lazy=True)
    except SchemaErrors:
        return False
    return True


@pytest.mark.parametrize("stage", STAGES)
def test_pandera_accepts_what_is_stored(built: Build, pictured: Build, stage: str) -> None:
    table = output(pictured if stage == MEDIA else built, stage)
    contract = stage_named(stage).contract(table.schema)
    assert by_pandera(contract, table) and not contract.problems(table)
    assert contract.description and all(row.description for row in contract.rows())


@pytest.mark.parametrize("stage", STAGES)
def test_pandera_refuses_what_a_build_refuses(built: Build, pictured: Build, stage: str) -> None:
    table = output(pictured if stage == MEDIA else built, stage)
    contract = stage_named(stage).contract(table.schema)
    changed = {} if contract.open else {"another column": table.append_column("another", pa.nulls(len(table)))}
    for name in contract.columns:
        if name in table.column_names:
            index, kind = table.column_names.index(name), table.schema.field(name).type
            changed[f"{name}: type"] = table.set_column(index, name, pa.array([1.5] * len(table)))
            changed[f"{name}: missing"] = table.drop_columns([name])
            if not contract.columns[name].nullable:
                changed[f"{name}: nulls"] = table.set_column(index, name, pa.nulls(len(table), kind))
    for number, check in enumerate(contract.checks.values()):
        # A table in which this check alone fails depends on the check; what both must do with its verdict does not.
        refused = replace(contract, checks={f"check {number}": lambda some, check=check: not check(some)})
        assert refused.problems(table) == [f"fails the check: check {number}"] and not by_pandera(refused, table)
    for what, table in changed.items():
        assert contract.problems(table), what
        assert not by_pandera(contract, table), what


def test_one_thread_at_a_time_is_inside_pandera(built: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    inside: set[int] = set()
    together: list[int] = []
    validate_alone = DataFrameSchema.validate

    def watched(*args: Any, **options: Any) -> object:
        inside.add(get_ident())
        time.sleep(0.01)
        together.append(len(inside))
        try:
            return validate_alone(*args, **options)
        finally:
            inside.discard(get_ident())

    monkeypatch.setattr(DataFrameSchema, "validate", watched)
    table = output(built, "sequences")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: validate(stage_named("sequences"), table, by_pandera=True), range(8)))
    assert together == [1] * 8


def test_every_form_has_a_contract_with_its_types() -> None:
    assert set(CONTRACTS) == {*FORMS, "fields"}
    for form in FORMS.values():
        found = {name: column.types for name, column in CONTRACTS[form.name].columns.items() if name != "_row"}
        assert found == {name: (kind,) for name, kind in form.types.items()}


def test_columns_of_pairs_are_described_by_side() -> None:
    contract = stage_named("sequences").contract(pa.schema([]))
    row = contract.row(pa.field("chosen_input_ids", pa.list_(pa.uint16())))
    assert row.description.startswith("The chosen side. Token ids")
    assert contract.row(pa.field("rows", pa.list_(pa.int32()))).description.startswith("The raw row")
    assert contract.row(pa.field("other", pa.int32())).description == ""


def test_a_build_does_not_import_pandera(tmp_path: Path) -> None:
    config = write_dataset(tmp_path, 60)
    program = (
        "import sys; from tokenloom import DataPipeline; "
        f"DataPipeline.from_config({str(config)!r}, {str(tmp_path / 'store')!r}).unwrap().build().unwrap(); "
        "print('pandera' in sys.modules)"
    )
    printed = [run([sys.executable, "-c", program], check=True).stdout for _ in range(2)]
    assert printed == ["False\n", "False\n"]
