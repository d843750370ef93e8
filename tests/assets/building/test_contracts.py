"""Each stage's contract: pandera alone accepts what a build stores, and refuses other types, nulls and columns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pandera.errors import SchemaErrors

from support.datasets_on_disk import write_dataset
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.stages import STAGES, stage_named
from tokenloom.assets.columns.contract import CONTRACTS
from tokenloom.assets.columns.forms import FORMS
from tokenloom.assets.stage.contract import contract_row, contract_rows, types_of
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("built")
    build = Build(PipelineConfig.from_file(write_dataset(folder, 60)), ArtifactStore(folder / "store"))
    list(build.run_all())
    return build


def output(build: Build, stage: str) -> pa.Table:
    return build.store.objects.get(build.manifest(stage).chunks[0].output)


@pytest.mark.parametrize("stage", STAGES)
def test_pandera_accepts_what_is_stored(built: Build, stage: str) -> None:
    table = output(built, stage)
    contract = stage_named(stage).contract(table.schema)
    assert contract.validate(table, lazy=True) is not None
    assert contract.description and all(row.description for row in contract_rows(contract))


@pytest.mark.parametrize("stage", STAGES)
def test_pandera_refuses_other_types_and_missing_columns(built: Build, stage: str) -> None:
    table = output(built, stage)
    contract = stage_named(stage).contract(table.schema)
    for name in contract.columns:
        if name in table.column_names:
            index = table.column_names.index(name)
            wrong = table.set_column(index, name, pa.array([1.5] * table.num_rows))
            for changed in (wrong, table.drop_columns([name])):
                with pytest.raises(SchemaErrors):
                    contract.validate(changed, lazy=True)


def test_every_form_has_a_contract_with_its_types() -> None:
    assert set(CONTRACTS) == {*FORMS, "fields"}
    for form, columns in FORMS.items():
        found = {name: types_of(column) for name, column in CONTRACTS[form].columns.items() if name != "_row"}
        assert found == {name: (kind,) for name, kind in columns.items()}


def test_columns_of_pairs_are_described_by_side() -> None:
    contract = stage_named("sequences").contract(pa.schema([]))
    row = contract_row(contract, pa.field("chosen_input_ids", pa.list_(pa.uint16())))
    assert row.description.startswith("The chosen side. Token ids")
    assert contract_row(contract, pa.field("rows", pa.list_(pa.int32()))).description.startswith("The raw row")
    assert contract_row(contract, pa.field("other", pa.int32())).description == ""


def test_a_build_without_changes_does_not_import_pandera(tmp_path: Path) -> None:
    config = write_dataset(tmp_path, 60)
    program = (
        "import sys; from tokenloom import DataPipeline; "
        f"DataPipeline.from_config({str(config)!r}, {str(tmp_path / 'store')!r}).unwrap().build().unwrap(); "
        "print('pandera' in sys.modules)"
    )
    printed = [subprocess.check_output([sys.executable, "-c", program], text=True).strip() for _ in range(2)]
    assert printed == ["True", "False"]
