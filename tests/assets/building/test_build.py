"""A build is a pure function of its inputs: the same bytes cold, warm, in any folder and on any number of workers."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from support.builds import build, digests, frozen_tokenizer
from support.datasets_on_disk import STAGES, TOKENIZER, write_dataset
from tokenloom.assets.building.build import Build
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, DataValidationError, SourceError
from tokenloom.resources.store import ArtifactStore


def test_rows_and_tokens_are_accounted_for_at_every_stage(tmp_path: Path) -> None:
    reports = build(write_dataset(tmp_path), tmp_path / "store")
    assert list(reports) == list(STAGES)
    for report in reports.values():
        assert report.rows_in == report.rows_out + report.rejected + report.filtered
        assert report.chunks_reused == 0
    assert reports["sequences"].rows_out == 300
    assert reports["raw"].chunks > 1


def test_a_second_build_computes_nothing(tmp_path: Path) -> None:
    config = write_dataset(tmp_path)
    cold, warm = build(config, tmp_path / "store"), build(config, tmp_path / "store")
    assert digests(cold) == digests(warm)
    assert all(report.chunks_reused == report.chunks for report in warm.values())


@pytest.mark.parametrize("workers", [1, 4])
def test_the_number_of_workers_does_not_change_the_bytes(tmp_path: Path, workers: int) -> None:
    config = write_dataset(tmp_path)
    assert digests(build(config, tmp_path / "a", workers)) == digests(build(config, tmp_path / "b", 2))


def test_a_store_elsewhere_and_a_config_elsewhere_give_the_same_bytes(tmp_path: Path) -> None:
    first = build(write_dataset(tmp_path / "here"), tmp_path / "s1")
    second = build(write_dataset(tmp_path / "there" / "deeper"), tmp_path / "s2")
    assert digests(first) == digests(second)


@pytest.mark.parametrize(
    ("section", "change", "missing"),
    [
        ("length", {"packing": "concat"}, {"sequences"}),
        ("tokenizer", {"max_length": 128}, {"sequences"}),
        ("dataloader", {"batch_size": 3}, set()),
        ("validation", {"max_reject_fraction": 0.5}, set()),
        ("tokenizer", {"padding": "longest"}, set()),
        ("tokenizer", {"control_tokens_in_content": "keep"}, {"tokens"}),
        ("prompt_template", {"add_eos": False}, {"prompts", "tokens", "sequences"}),
    ],
)
def test_a_setting_recomputes_the_stages_that_read_it(
    tmp_path: Path, section: str, change: dict[str, object], missing: set[str]
) -> None:
    config = write_dataset(tmp_path, tokenizer=frozen_tokenizer(tmp_path))
    before = build(config, tmp_path / "store")
    settings = yaml.safe_load(config.read_text())
    settings[section] = settings.get(section, {}) | change
    config.write_text(yaml.safe_dump(settings))
    after = build(config, tmp_path / "store")
    assert {name for name, report in after.items() if report.chunks_reused == 0} == missing
    changed = {name for name in STAGES if before[name].digest != after[name].digest}
    assert changed - {"sequences"} <= missing


def test_a_renamed_source_file_changes_no_digest(tmp_path: Path) -> None:
    config = write_dataset(tmp_path)
    before = build(config, tmp_path / "store")
    (tmp_path / "small.jsonl").rename(tmp_path / "renamed.jsonl")
    config.write_text(config.read_text().replace("small.jsonl", "renamed.jsonl"))
    after = build(config, tmp_path / "store")
    assert digests(before) == digests(after)
    assert all(report.chunks_reused == report.chunks for report in after.values())


def test_a_missing_object_is_computed_again(tmp_path: Path) -> None:
    config = write_dataset(tmp_path)
    cold = build(config, tmp_path / "store")
    store = ArtifactStore(tmp_path / "store")
    store.objects.path(store.manifest("small", "tokens").chunks[1].output).unlink()
    healed = build(config, tmp_path / "store")
    assert digests(healed) == digests(cold)
    assert healed["tokens"].chunks_reused == healed["tokens"].chunks - 1


def test_a_few_bad_rows_never_stop_a_build_and_never_vanish(tmp_path: Path) -> None:
    config = write_dataset(tmp_path, 400)
    data = tmp_path / "small.jsonl"
    lines = data.read_text().splitlines()
    lines[7] = "{broken"
    lines[200] = json.dumps({"instruction": "say nothing", "input": "", "output": "  "})
    data.write_text("\n".join(lines) + "\n")
    reports = build(config, tmp_path / "store")
    assert (reports["raw"].rejected, reports["columns"].rejected, reports["sequences"].rows_out) == (1, 1, 398)
    store = ArtifactStore(tmp_path / "store")
    kept = [chunk.rejects for chunk in store.manifest("small", "columns").chunks if chunk.rejects]
    found = pa.concat_tables([store.objects.get(digest) for digest in kept]).to_pylist()
    assert [(reject["stage"], reject["code"], reject["field"]) for reject in found] == [
        ("columns", "empty_answer", "output")
    ]


def test_too_many_bad_rows_fail_the_run_with_the_reasons(tmp_path: Path) -> None:
    config = write_dataset(tmp_path)
    data = tmp_path / "small.jsonl"
    data.write_text(data.read_text() + "{broken\n" * 20)
    with pytest.raises(DataValidationError, match=r"raw: 20 of 320 rows rejected.*20 × invalid_json"):
        build(config, tmp_path / "store")
    assert "small" not in ArtifactStore(tmp_path / "store").datasets()


@pytest.mark.parametrize(
    ("name", "content"), [("e.csv", "a,b\n"), ("e.json", "[]"), ("e.jsonl", ""), ("e.txt", " \n\n")]
)
def test_a_source_without_rows_is_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    config = write_dataset(tmp_path, dataset={"name": name}, prompt_template={"format_type": "text"})
    with pytest.raises(DataValidationError, match=f"left of {name}"):
        build(config, tmp_path / "store")


def test_an_unclosed_quote_is_reported_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "open.csv").write_text('instruction,output\na,b\nc,"unclosed\n' + "d,e\n" * 100)
    config = write_dataset(tmp_path, dataset={"name": "open.csv"})
    with pytest.raises(SourceError, match=r"open\.csv: the quote that opens a field on line 3 is never closed"):
        build(config, tmp_path / "store")


def test_columns_that_are_not_kept_do_not_reject_rows(tmp_path: Path) -> None:
    config = write_dataset(
        tmp_path, 100, dataset={"name": "small.jsonl", "columns": ["instruction", "input", "output"]}
    )
    lines = [json.loads(line) for line in (tmp_path / "small.jsonl").read_text().splitlines()]
    odd = [{**row, "id": number if number % 2 else str(number)} for number, row in enumerate(lines)]
    (tmp_path / "small.jsonl").write_text("\n".join(map(json.dumps, odd)) + "\n")
    assert build(config, tmp_path / "store")["sequences"].rows_out == 100


def test_hidden_files_of_a_folder_are_not_read(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", 60)
    for hidden in (".hidden.jsonl", ".tokenloom/x.jsonl"):
        (tmp_path / "data" / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / "data" / hidden).write_text("{not json")
    (tmp_path / "data" / "small.yaml").unlink()
    config = write_dataset(tmp_path, dataset={"name": "data"})
    assert build(config, tmp_path / "store")["raw"].rows_out == 60


def test_a_store_in_a_folder_of_data_is_not_read(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", 60)
    (tmp_path / "data" / "small.yaml").unlink()
    config = write_dataset(tmp_path, dataset={"name": "data"})
    for _ in range(2):
        assert build(config, tmp_path / "data/deep/store")["raw"].rows_out == 60


def test_secrets_of_source_urls_stay_out_of_the_store(tmp_path: Path) -> None:
    import gzip
    import threading
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    local = build(write_dataset(tmp_path), tmp_path / "local")
    (tmp_path / "small.jsonl.gz").write_bytes(gzip.compress((tmp_path / "small.jsonl").read_bytes()))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for name in ("small.jsonl?token=hush-hush", "small.jsonl.gz"):
            url = f"http://127.0.0.1:{server.server_port}/{name}"
            config = write_dataset(tmp_path / "other", dataset={"name": url})
            assert build(config, tmp_path / "store")["sequences"].digest == local["sequences"].digest
        config = write_dataset(tmp_path / "other", dataset={"name": url.replace("small", "absent")})
        with pytest.raises(SourceError, match=r"absent\.jsonl\.gz: no such file"):
            build(config, tmp_path / "store")
    finally:
        server.shutdown()
    for path in (path for path in (tmp_path / "store").rglob("*") if path.is_file()):
        assert b"hush-hush" not in path.read_bytes()


def test_an_unused_role_is_reported(tmp_path: Path) -> None:
    mapping = {"promt": "instruction", "completion": "output"}
    dataset = {"name": "small.jsonl", "column_mapping": mapping}
    config = write_dataset(tmp_path, dataset=dataset, prompt_template={"format_type": "completion"})
    with pytest.raises(ConfigError, match=r"column_mapping\.promt: unknown role; did you mean prompt\?"):
        build(config, tmp_path / "store")


def test_a_missing_column_is_reported_at_the_line_of_the_template(tmp_path: Path) -> None:
    template = "Q: {instrution}\nA: {output}\n"
    config = write_dataset(tmp_path)
    block = "".join(f"    {line}\n" for line in template.splitlines())
    config.write_text(
        f"dataset: {{name: small.jsonl}}\ntokenizer: {json.dumps(TOKENIZER)}\n"
        f"prompt_template:\n  template: |\n{block}  label_column: output\n"
    )
    with pytest.raises(ConfigError, match=r"small\.yaml:5: .*no column \{instrution\}.*did you mean instruction\?"):
        build(config, tmp_path / "store")


def test_a_limited_build_is_published_separately(tmp_path: Path) -> None:
    config = PipelineConfig.from_file(write_dataset(tmp_path))
    reports = list(Build(config, ArtifactStore(tmp_path / "store"), limit=10).run_all())
    assert reports[-1].rows_out == 10
    assert ArtifactStore(tmp_path / "store").datasets() == ["small@10"]
