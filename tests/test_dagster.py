"""The Dagster edge: definitions from YAML, materialization on a real store, checks that find damage, and the UI."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
import yaml

import tokenloom
from tokenloom.assets.build import STAGES, Build, code_versions, stage_named
from tokenloom.assets.dagster_assets import StoreResource, asset_key, check_contract, dataset_definitions, job_name
from tokenloom.config import PipelineConfig
from tokenloom.definitions import load_definitions
from tokenloom.errors import ConfigError
from tokenloom.resources.store import ArtifactStore, Manifest

ROOT = Path(__file__).parents[1]
WORKSPACE = ROOT / "workspace.yaml"
ROWS = 60

TEMPLATE = "### {instruction}\n{input}\n### Response:\n{output}\n"
SECTIONS: dict[str, Any] = {
    "dataset": {"name": "rows"},
    "tokenizer": {
        "train": {"vocab_size": 400, "min_frequency": 1},
        "max_length": 64,
        "special_tokens": {"eos": "<|endoftext|>", "pad": "<|pad|>"},
    },
    "prompt_template": {"template": TEMPLATE, "label_column": "output"},
}


@dataclass(frozen=True)
class Project:
    """A folder as a user has it: pipelines/ with YAMLs and data, and a store."""

    folder: Path

    @property
    def pipelines(self) -> Path:
        return self.folder / "pipelines"

    @property
    def root(self) -> Path:
        return self.folder / "store"

    @property
    def store(self) -> ArtifactStore:
        return ArtifactStore(self.root)

    def environment(self, **more: str) -> dict[str, str]:
        own = {"TOKENLOOM_PIPELINES": str(self.pipelines), "TOKENLOOM_STORE": str(self.root)}
        return {**os.environ, **own, **more}

    def write(self, stem: str = "toy", **sections: Any) -> Path:
        """A YAML; each section given replaces that of `SECTIONS`."""
        path = self.pipelines / f"{stem}.yaml"
        path.write_text(yaml.safe_dump({**SECTIONS, **sections}, sort_keys=False), encoding="utf-8")
        return path

    @property
    def config(self) -> PipelineConfig:
        return PipelineConfig.from_file(self.pipelines / "toy.yaml")

    def run(self) -> dg.ExecuteInProcessResult:
        """The job's run on an instance of its own."""
        job = runnable(self.config, self.root).resolve_job_def("toy")
        with dg.DagsterInstance.ephemeral() as instance:
            return job.execute_in_process(instance=instance, raise_on_error=False)


def runnable(config: PipelineConfig, store: Path | None = None) -> dg.Definitions:
    """The definitions of one dataset, and the store that they need."""
    resource = StoreResource(root=str(store) if store else None)
    return dg.Definitions.merge(dataset_definitions(config), dg.Definitions(resources={"store": resource}))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """One dataset of two files, so of two chunks."""
    made = Project(tmp_path)
    rows = made.pipelines / "rows"
    rows.mkdir(parents=True)
    for part, name in enumerate(("a.jsonl", "b.jsonl")):
        numbers = range(part * ROWS // 2, (part + 1) * ROWS // 2)
        records = ({"instruction": f"Square {n}", "input": f"mind {n % 7}", "output": f"{n * n}"} for n in numbers)
        (rows / name).write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    made.write()
    return made


def stage_metadata(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """The metadata of each materialization, by stage."""
    found = [event.step_materialization_data.materialization for event in result.get_asset_materialization_events()]
    return {made.asset_key.path[-1]: {name: entry.value for name, entry in made.metadata.items()} for made in found}


def data_versions(result: dg.ExecuteInProcessResult) -> dict[str, str]:
    found = [event.step_materialization_data.materialization for event in result.get_asset_materialization_events()]
    return {made.asset_key.path[-1]: (made.tags or {})["dagster/data_version"] for made in found}


def failure(result: dg.ExecuteInProcessResult) -> str:
    """The description of the one step that failed."""
    assert not result.success
    (event,) = [event for event in result.all_events if event.is_step_failure]
    data = event.step_failure_data.user_failure_data
    assert data is not None
    return data.description or ""


# Definitions.


def test_assets_follow_the_stages(project: Project) -> None:
    specs = {spec.key: spec for spec in load_definitions(project.pipelines).resolve_all_asset_specs()}
    versions = code_versions(project.config)
    assert set(specs) == {asset_key("toy", stage) for stage in STAGES}
    for stage in STAGES:
        spec = specs[asset_key("toy", stage)]
        assert {dep.asset_key for dep in spec.deps} == {
            asset_key("toy", above) for above in stage_named(stage).upstream
        }
        assert (spec.group_name, spec.kinds, spec.code_version) == ("toy", {"arrow"}, versions[stage])
        assert (spec.description or "").startswith(f"{stage}: ")


def test_every_stage_has_a_blocking_check(project: Project) -> None:
    graph = load_definitions(project.pipelines).resolve_asset_graph()
    assert {key.asset_key for key in graph.asset_check_keys} == {asset_key("toy", stage) for stage in STAGES}
    assert all(graph.get_check_spec(key).blocking for key in graph.asset_check_keys)


@pytest.mark.parametrize("name", ["a-b.c", "2024.01", "config", "class", "x_y"])
def test_any_dataset_name_makes_valid_definitions(project: Project, name: str) -> None:
    project.write(name, schedule="0 3 * * *")
    definitions = load_definitions(project.pipelines)
    dg.Definitions.validate_loadable(definitions)
    assert definitions.resolve_job_def(job_name(name)).asset_layer.selected_asset_keys >= {asset_key(name, "raw")}


def test_a_schedule_has_the_cron_line_and_starts_stopped(project: Project) -> None:
    project.write("nightly", schedule="30 2 * * 1-5")
    (schedule,) = list(load_definitions(project.pipelines).schedules or [])
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.cron_schedule, schedule.job_name) == ("30 2 * * 1-5", "nightly")
    assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED


def changed_versions(**sections: Any) -> set[str]:
    """The stages whose code version differs from that of `SECTIONS`."""

    def versions(settings: dict[str, Any]) -> dict[str, str | None]:
        definitions = runnable(PipelineConfig.from_mapping({"name": "toy", **settings}))
        return {spec.key.path[-1]: spec.code_version for spec in definitions.resolve_all_asset_specs()}

    before, after = versions(SECTIONS), versions({**SECTIONS, **sections})
    return {stage for stage in STAGES if before[stage] != after[stage]}


@pytest.mark.parametrize(
    ("sections", "changed"),
    [
        ({"length": {"packing": "concat"}}, {"sequences"}),
        ({"tokenizer": {**SECTIONS["tokenizer"], "max_length": 32}}, {"sequences"}),
        ({"prompt_template": {**SECTIONS["prompt_template"], "template": "{input}{output}"}}, set(STAGES[2:])),
        ({"dataloader": {"batch_size": 3}, "schedule": "0 3 * * *", "compute": {"workers": 1}}, set()),
    ],
    ids=["packing", "max_length", "template", "nothing that stages read"],
)
def test_an_edit_changes_the_code_versions_of_its_stage_and_downstream(
    sections: dict[str, Any], changed: set[str]
) -> None:
    assert changed_versions(**sections) == changed


def line_of(path: Path, begin: str) -> int:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.startswith(begin))


def test_every_fault_of_every_file_is_told(project: Project) -> None:
    cron = project.write("cron", schedule="99 3 * * *")
    project.write("typo", dataset={"name": "rows", "colunms": ["a"]}, tokenizer={"max_length": 0})
    project.write("a name", dataset={"name": "rows"})
    with pytest.raises(ConfigError) as caught:
        load_definitions(project.pipelines)
    lines = str(caught.value).splitlines()
    assert [line.removeprefix(f"{project.pipelines}/").split(": ")[0] for line in lines] == [
        "a name.yaml:1",
        f"cron.yaml:{line_of(cron, 'schedule:')}",
        "typo.yaml:3",
        "typo.yaml:6",
    ]
    assert "did you mean columns?" in lines[2]


@pytest.mark.parametrize("other", ["toy", "t-y"])
def test_two_files_of_one_name_are_refused(project: Project, other: str) -> None:
    first = project.write("second", name=other)
    second = project.write("toy", name=other.replace("-", "."))
    with pytest.raises(ConfigError) as caught:
        load_definitions(project.pipelines)
    (fault,) = caught.value.faults
    assert fault.place == f"{second}:{line_of(second, 'name:')}"
    assert str(first) in fault.message


@pytest.mark.parametrize("folder", ["none", "empty"])
def test_without_yaml_the_definitions_are_empty(tmp_path: Path, folder: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".swap.yaml").write_text("not: [a", encoding="utf-8")
    assert list(load_definitions(tmp_path / folder).resolve_all_asset_specs()) == []
    assert str(tmp_path / folder) in caplog.text


def test_definitions_load_no_heavy_library(project: Project) -> None:
    code = (
        "import sys, tokenloom.definitions as d;"
        "assert len(d.defs.resolve_all_asset_specs()) == 7;"
        "print(sorted({'torch', 'transformers', 'pandera', 'datasets', 'polars', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=project.environment(), capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def validate(project: Project, **environment: str) -> subprocess.CompletedProcess[str]:
    home = project.folder / "home"
    home.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-w", str(WORKSPACE)]
    env = project.environment(DAGSTER_HOME=str(home), **environment)
    return subprocess.run(
        command, cwd=project.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_the_workspace_validates(project: Project) -> None:
    done = validate(project, TOKENLOOM_PIPELINES="")  # then pipelines/ of the working directory
    assert done.returncode == 0, done.stdout
    assert "Validation successful for code location tokenloom" in done.stdout


def test_a_faulty_yaml_fails_validation_with_its_line(project: Project) -> None:
    path = project.write("wrong", tokenizer={"max_length": "many"})
    done = validate(project)
    assert done.returncode != 0
    assert f"{path}:4: tokenizer.max_length: expected a whole number, found 'many'" in done.stdout


# Materialization.


def test_materializing_builds_the_store_and_a_fresh_instance_hits(project: Project) -> None:
    first = project.run()
    assert first.success
    stored = {stage: project.store.manifest("toy", stage) for stage in STAGES}
    assert data_versions(first) == {stage: manifest.digest for stage, manifest in stored.items()}
    checks = first.get_asset_check_evaluations()
    assert len(checks) == len(STAGES)
    assert all(check.passed for check in checks)

    again = project.run()
    assert again.success
    assert data_versions(again) == data_versions(first)
    for stage, metadata in stage_metadata(again).items():
        assert metadata["chunks_reused"] == metadata["chunks"] == len(stored[stage].chunks)
    assert sum(metadata["chunks_reused"] for metadata in stage_metadata(first).values()) == 0


def test_dagster_and_a_plain_build_make_the_same(project: Project) -> None:
    config, apart = project.config, ArtifactStore(project.folder / "apart")
    built = {report.name: report.digest for report in Build(config, apart).run_all()}
    result = project.run()
    assert data_versions(result) == built
    reports = list(Build(config, project.store).run_all())
    assert all(report.chunks_reused == report.chunks for report in reports)
    assert {report.name: report.digest for report in reports} == built


@pytest.mark.parametrize("packing", ["none", "concat"])
def test_metadata_tells_what_a_stage_made(project: Project, packing: str) -> None:
    project.write(length={"packing": packing})
    shown = stage_metadata(project.run())
    store = project.store
    for stage in STAGES:
        manifest, metadata = store.manifest("toy", stage), shown[stage]
        tables = [store.objects.get(chunk.output) for chunk in manifest.chunks]
        for count in ("rows_in", "rows_out", "rejected", "filtered", "tokens"):
            assert metadata[count] == manifest.total(count)
        if stage != "schema":  # its table describes columns
            assert metadata["dagster/row_count"] == sum(table.num_rows for table in tables)
        schema = metadata["dagster/column_schema"]
        assert [(column.name, column.type) for column in schema.columns] == [
            (field.name, str(field.type)) for field in tables[0].schema
        ]
        assert isinstance(metadata["seconds"], float)
        for name, count in manifest.counters.items():
            assert metadata[f"counters/{name}"] == count
    assert shown["sequences"]["tokens"] > 0


def sample_of(result: dg.ExecuteInProcessResult, stage: str, label: str = "sample") -> list[dict[str, Any]]:
    (event,) = result.asset_materializations_for_node(f"toy__{stage}")
    value = event.metadata[label]
    assert isinstance(value, dg.TableMetadataValue)
    return [dict(record.data) for record in value.records]


def test_samples_are_short_and_plain(project: Project) -> None:
    odd = {"instruction": "long " * 1000, "input": "", "output": "\u2028é", "big": 2**60, "none": None}
    project.write(tokenizer={**SECTIONS["tokenizer"], "max_length": 4096})
    odd |= {"deep": {"a": [1.5, None]}, "half": 0.5, "flag": True}
    (project.pipelines / "rows" / "a.jsonl").write_text(json.dumps(odd) + "\n", encoding="utf-8")
    result = project.run()
    assert result.success
    (row,) = sample_of(result, "raw")
    assert row["instruction"].endswith("…")
    assert all(len(cell) <= 160 for cell in row.values() if isinstance(cell, str))
    assert (row["big"], row["none"], row["half"], row["flag"]) == (str(2**60), None, 0.5, True)
    assert len(sample_of(result, "tokens")) == 1
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_rejects_are_shown_by_code(project: Project) -> None:
    project.write(validation={"max_reject_fraction": 0.5})
    broken = '{"instruction": "a", "input": "b", "output": "c"}\n{"instruction": oops\n[1]\n'
    (project.pipelines / "rows" / "a.jsonl").write_text(broken, encoding="utf-8")
    result = project.run()
    assert result.success
    rows = sample_of(result, "raw", "rejects")
    metadata = stage_metadata(result)["raw"]
    assert sum(row["rows"] for row in rows) == metadata["rejected"] == 2
    assert any("oops" in row["example"] for row in rows)
    assert all(row["code"] in metadata["rejects_summary"] for row in rows)
    assert "rejects" not in stage_metadata(result)["prompts"]


# A user's mistakes and damage.


def test_a_missing_file_fails_the_run_with_one_sentence(project: Project) -> None:
    path = project.write(dataset={"name": "rowz.jsonl"})
    result = project.run()
    assert failure(result) == f"{path}:2: dataset.name: no such file: rowz.jsonl"
    assert data_versions(result) == {}


def test_too_many_rejects_fail_the_run_and_say_why(project: Project) -> None:
    (project.pipelines / "rows" / "a.jsonl").write_text("{oops\n" * 9, encoding="utf-8")
    message = failure(project.run())
    assert message.startswith(
        "raw: 9 of 39 rows rejected, more than validation.max_reject_fraction (0.01) allows: 9 × "
    )


def test_a_folder_that_is_no_store_fails_the_run_with_one_sentence(project: Project) -> None:
    project.root.mkdir()
    (project.root / "FORMAT").write_text("something else\n", encoding="utf-8")
    assert "something else" in failure(project.run())
    checked = check(project, "raw")
    assert not checked.passed
    assert "something else" in (checked.description or "")


def check(project: Project, stage: str) -> dg.AssetCheckResult:
    return check_contract(project.config, stage_named(stage), StoreResource(root=str(project.root)))


def test_the_check_counts_what_it_read(project: Project) -> None:
    missing = check(project, "raw")
    assert not missing.passed
    assert "no dataset 'toy' in the store" in (missing.description or "")
    project.run()
    passed = check(project, "tokens")
    assert passed.passed
    assert {name: entry.value for name, entry in passed.metadata.items()} == {
        "chunks": 2,
        "rows": ROWS,
        "failed_chunks": 0,
    }


def publish(project: Project, stage: str, alter: Callable[[Manifest], Manifest]) -> None:
    """Make an altered manifest the stage's latest."""
    project.store.put_manifest(alter(project.store.manifest("toy", stage)))


def swap_output(project: Project, table: pa.Table) -> Callable[[Manifest], Manifest]:
    """Give the second chunk another table."""
    digest = project.store.objects.put(table, compressed=True)

    def alter(manifest: Manifest) -> Manifest:
        first, second = manifest.chunks
        return replace(manifest, chunks=(first, replace(second, output=digest)))

    return alter


def test_the_check_finds_broken_contracts_and_lost_rows(project: Project) -> None:
    project.run()
    second = project.store.objects.get(project.store.manifest("toy", "tokens").chunks[1].output)
    wrong_type = second.set_column(1, "input_ids", second["input_ids"].cast(pa.list_(pa.int64())))
    publish(project, "tokens", swap_output(project, wrong_type))
    found = check(project, "tokens")
    assert not found.passed
    assert "chunk 1: tokens: output breaks its contract: column input_ids is list<item: int64>" in (
        found.description or ""
    )
    assert found.metadata["failed_chunks"].value == 1

    shorter = second.set_column(1, "input_ids", pa.array([[1]] * second.num_rows, second.schema.field(1).type))
    publish(project, "tokens", swap_output(project, shorter))
    assert "spans partition the tokens" in (check(project, "tokens").description or "")

    def lose_a_row(manifest: Manifest) -> Manifest:
        first, *rest = manifest.chunks
        return replace(manifest, chunks=(replace(first, rows_out=first.rows_out - 1), *rest))

    publish(project, "columns", lose_a_row)
    assert "chunk 0: rows that came in: 30 are recorded, 29 are accounted for" in (
        check(project, "columns").description or ""
    )


def flip_a_byte(project: Project, stage: str, chunk: int) -> Path:
    path = project.store.objects.path(project.store.manifest("toy", stage).chunks[chunk].output)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("stage", ["raw", "sequences"])
def test_a_damaged_object_fails_the_check_and_stops_what_is_downstream(project: Project, stage: str) -> None:
    assert project.run().success
    path = flip_a_byte(project, stage, 1)
    damaged = project.run()
    assert not damaged.success
    failed = [check for check in damaged.get_asset_check_evaluations() if not check.passed]
    assert [check.asset_key for check in failed] == [asset_key("toy", stage)]
    assert f"object {path.stem} is damaged; delete {path}" in (failed[0].description or "")
    assert list(data_versions(damaged)) == list(STAGES[: STAGES.index(stage) + 1])
    path.unlink()
    assert project.run().success


def test_a_damaged_first_chunk_fails_the_run_with_one_sentence(project: Project) -> None:
    assert project.run().success
    path = flip_a_byte(project, "raw", 0)
    assert failure(project.run()).startswith(f"object {path.stem} is damaged")


# The UI.


@dataclass(frozen=True)
class WebServer:
    """A running dagster-webserver, asked as the browser asks it."""

    url: str

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer
        return answer["data"]

    def launch(self, job: str) -> str:
        selector = {"repositoryLocationName": "tokenloom", "repositoryName": "__repository__", "jobName": job}
        launched = self.ask(LAUNCH, params={"selector": selector, "runConfigData": {}})["launchPipelineExecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return launched["run"]["runId"]

    def finished(self, run: str) -> dict[str, Any]:
        """The run, once it is over."""
        deadline = time.monotonic() + 40
        while True:
            found = self.ask(RUN, run=run)["runOrError"]
            if found["status"] in ("SUCCESS", "FAILURE", "CANCELED"):
                return found
            assert time.monotonic() < deadline, f"the run is still {found['status']}"
            time.sleep(0.2)


LAUNCH = """
mutation Launch($params: ExecutionParams!) {
  launchPipelineExecution(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}"""

RUN = """
query Run($run: ID!) {
  runOrError(runId: $run) {
    ... on Run {
      status
      assetMaterializations {
        assetKey { path }
        metadataEntries {
          label
          ... on IntMetadataEntry { intRepr }
          ... on TableMetadataEntry { table { records } }
          ... on TableSchemaMetadataEntry { schema { columns { name type } } }
        }
      }
      eventConnection { events { ... on ExecutionStepFailureEvent { error { message } } } }
    }
  }
}"""


def processes_with(marker: str) -> set[int]:
    """Processes whose environment holds `marker`, this one aside."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and marker.encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
    return found - {os.getpid()}


@pytest.fixture
def web_server(project: Project) -> Iterator[WebServer]:
    """The UI on a port of its own, with the repository's workspace.yaml and dagster.yaml."""
    home = project.folder / "home"
    home.mkdir()
    shutil.copy(ROOT / "dagster.yaml", home)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "dagster_webserver", "-h", "127.0.0.1", "-p", str(port), "-w", str(WORKSPACE)]
    env = project.environment(DAGSTER_HOME=str(home))
    with (project.folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=project.folder, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        made = WebServer(f"http://127.0.0.1:{port}")
        _await(made, server, project.folder / "server.log")
        yield made
    finally:
        _stop(server, f"DAGSTER_HOME={home}")


def _await(made: WebServer, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 40
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            made.ask("{ version }")
            return
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def _stop(server: subprocess.Popen[bytes], marker: str) -> None:
    """End the server, its code server and its run workers, all of them children with `marker` in the environment."""
    server.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 10
    while (server.poll() is None or processes_with(marker)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in processes_with(marker):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    server.wait(10)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes to end through /proc")
def test_the_ui_materializes_a_dataset(web_server: WebServer, project: Project) -> None:
    run = web_server.finished(web_server.launch("toy"))
    assert run["status"] == "SUCCESS"
    shown = {
        made["assetKey"]["path"][-1]: {entry["label"]: entry for entry in made["metadataEntries"]}
        for made in run["assetMaterializations"]
    }
    assert list(shown) == list(STAGES)
    assert shown["sequences"]["dagster/row_count"]["intRepr"] == str(ROWS)
    assert shown["raw"]["chunks"]["intRepr"] == "2"
    columns = [column["name"] for column in shown["tokens"]["dagster/column_schema"]["schema"]["columns"]]
    assert columns == ["_row", "input_ids", "spans"]
    assert len(shown["prompts"]["sample"]["table"]["records"]) == 5
    assert len(tokenloom.open_dataset("toy", "train", project.root)) == ROWS

    path = project.write(dataset={"name": "gone.jsonl"})
    failed = web_server.finished(web_server.launch("toy"))
    assert failed["status"] == "FAILURE"
    messages = [event["error"]["message"] for event in failed["eventConnection"]["events"] if event.get("error")]
    assert any(message.strip().endswith(f"{path}:2: dataset.name: no such file: gone.jsonl") for message in messages)
