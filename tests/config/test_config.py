"""Reading YAML files: valid ones load, and every fault of a wrong one is reported with its line and a remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.datasets_on_disk import DESIGN
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError


def faults(folder: Path, text: str | bytes) -> list[str]:
    """Return the faults of a YAML as `line: message`, without the file name."""
    path = folder / "data.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        PipelineConfig.from_file(path)
    assert caught.value.exit_code == 2
    return [str(fault).removeprefix(f"{path}:").strip() for fault in caught.value.faults]


def test_the_documented_file_loads(tmp_path: Path) -> None:
    path = tmp_path / "alpaca.yaml"
    path.write_text(DESIGN)
    config = PipelineConfig.from_file(path)
    assert config.dataset_name == "alpaca"
    assert config.prompt_template.input_columns == ("instruction", "input")
    assert (config.prompt_template.template or "").endswith("### Response:\n{output}\n")
    assert (config.tokenizer.padding, config.dataloader.batch_size, config.dataloader.num_workers) == (
        "max_length",
        4,
        4,
    )


def test_a_name_and_defaults_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("dataset: {name: x.jsonl}\n")
    mapped = PipelineConfig.from_mapping({"dataset": {"name": "x.jsonl"}})
    assert PipelineConfig.from_file(path).model_dump() == mapped.model_dump()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("type: other", "1: type: 'other' is not one of data_module"),
        ('version: "2.0"', "1: version: '2.0' is not one of 1.0; did you mean 1.0?"),
        ("datset: {name: x}", "1: datset: unknown setting; did you mean dataset?"),
        ("tokenizer: {max_lenght: 5}", "1: tokenizer.max_lenght: unknown setting; did you mean max_length?"),
        ("tokenizer: {max_length: '5'}", "1: tokenizer.max_length: expected an integer, got '5'"),
        ("tokenizer: {padding: longst}", "'longst' is not one of max_length, longest; did you mean longest?"),
        ("dataloader: {batch_size: 0}", "1: dataloader.batch_size: must be greater than or equal to 1, got 0"),
        ("dataloader: {batch_size: true}", "1: dataloader.batch_size: expected an integer, got true"),
        ("dataloader: [1]", "1: dataloader: expected settings, got [1]"),
        ("length: {packing: concatt}", "'concatt' is not one of none, concat, best_fit, tree; did you mean concat?"),
        ("prompt_template: {train_on: [assistan]}", "roles system, user, assistant, tool; did you mean assistant?"),
        ("schedule: ''", "1: schedule: must have at least 1 character, got ''"),
        ("schedule: 3", "1: schedule: expected text or settings or null, got 3"),
        ("schedule: {cron: 0 3 * * *, timezone: 3}", "1: schedule.timezone: expected text, got 3"),
        ("schedule: {cron: 0 3 * * *, zone: UTC}", "1: schedule.zone: unknown setting; did you mean timezone?"),
        ("tokenizer: {train: {}}", 'train needs special_tokens; for example {eos: "<|endoftext|>", pad: "<|pad|>"}'),
        ("prompt_template: {format_type: jinja}", "1: prompt_template: format_type jinja needs a template"),
        ("name: a/b", "name: must match pattern"),
        ("tokenizer: {max_length: 99999999999999999999}", "must be less than or equal to 2147483647"),
        ("1: x", "names of settings must be text"),
        ("dataset: {name: y}", "2: dataset: set twice, first on line 1"),
    ],
)  # fmt: skip
def test_each_fault_has_its_line_and_remedy(tmp_path: Path, line: str, found: str) -> None:
    (fault, *_) = faults(tmp_path, f"{line}\ndataset: {{name: x}}\n")
    assert re.match(r"\d+: [a-z_.0-9]+: ", fault)
    assert found in fault


def test_all_faults_are_named_in_file_order(tmp_path: Path) -> None:
    text = "type: wrong\ndataset:\n  nam: x\n  val_split: 2\ntokenizer:\n  max_length: many\nfoo: 1\n"
    lines = [int(fault.split(":")[0]) for fault in faults(tmp_path, text)]
    assert lines == [1, 2, 3, 4, 6, 7]


def test_a_schedule_is_a_cron_line_in_utc_or_has_a_time_zone() -> None:
    for written, found in (
        ("0 3 * * *", ("0 3 * * *", "UTC")),
        ({"cron": "0 3 * * *"}, ("0 3 * * *", "UTC")),
        ({"cron": "0 3 * * *", "timezone": "Europe/Berlin"}, ("0 3 * * *", "Europe/Berlin")),
    ):
        schedule = PipelineConfig.from_mapping({"dataset": {"name": "x.jsonl"}, "schedule": written}).schedule
        assert schedule is not None and (schedule.cron, schedule.timezone) == found
    taken = PipelineConfig.model_json_schema()["properties"]["schedule"]["anyOf"]
    assert [each.get("type", each.get("$ref")) for each in taken] == ["string", "#/$defs/ScheduleConfig", "null"]


@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", "", "../../etc/passwd", "Europe", "a" * 5000, "a\0b", "/etc/localtime"]
)
def test_what_is_no_time_zone_is_refused_in_one_sentence(zone: str) -> None:
    schedule = {"cron": "0 3 * * *", "timezone": zone}
    with pytest.raises(ConfigError) as caught:
        PipelineConfig.from_mapping({"dataset": {"name": "x.jsonl"}, "schedule": schedule})
    (fault,) = caught.value.faults
    assert re.fullmatch("schedule.timezone: '[^']*' is not a known time zone; [^;]+", fault.message)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: [1,", r"^\d+: not valid YAML: "),
        ("\tdataset: x", r"^\d+: not valid YAML: "),
        ("- a\n- b\n", r"^1: expected settings"),
        ("", r"^not valid YAML|expected settings"),
        ("dataset: !!python/object/apply:os.system ['echo']\n", r"could not determine a constructor"),
        (b"\xff\xfe\x00bad", r"cannot be read"),
    ],
)
def test_a_file_that_is_not_yaml_with_settings_is_refused(tmp_path: Path, text: str | bytes, found: str) -> None:
    assert re.search(found, faults(tmp_path, text)[0])


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "alpaca.yaml").write_text(DESIGN)
    with pytest.raises(ConfigError, match=r"alpacca\.yaml: no such file; did you mean alpaca\.yaml\?"):
        PipelineConfig.from_file(tmp_path / "alpacca.yaml")


def test_a_file_name_that_no_dataset_can_have_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "my data.yaml"
    path.write_text("dataset: {name: x.jsonl}\n")
    with pytest.raises(ConfigError, match=r"'my data' is not a valid dataset name; set `name:` to letters, digits, _,"):
        PipelineConfig.from_file(path)
    path.write_text("name: my_data\ndataset: {name: x.jsonl}\n")
    assert PipelineConfig.from_file(path).dataset_name == "my_data"


@given(st.text(max_size=200))
def test_no_text_makes_reading_fail_in_another_way(text: str) -> None:
    from tokenloom.config.dataset import parse_config

    try:
        parse_config(text, Path("any.yaml"))
    except ConfigError as error:
        assert error.faults


def test_configs_cannot_be_changed() -> None:
    config = PipelineConfig.from_mapping({"dataset": {"name": "x"}})
    with pytest.raises(ValueError, match="frozen"):
        config.dataset.name = "y"
