"""Pre-tokenized rows from YAML to batches: refusals, rejects and notices, and numbers that follow their tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from support.builds import SMALL
from tokenloom import DataPipeline, open_dataset
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.on_the_fly import PromptEngine
from tokenloom.cli import main
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, DataValidationError
from tokenloom.loaders import MixedDataset, PreprocessedDataset, TokenLoader
from tokenloom.loaders.datasets.mixed_dataset import row_tables
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore

EOS, LONGEST = 3, 48
Row = dict[str, Any]


def rollouts(count: int = 600, seed: int = 0, longest: int = 40) -> list[Row]:
    """Rows with a prompt, an answer that ends with EOS, and a number that differs for each token."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        prompt, answer = draw.randrange(1, longest), draw.randrange(1, longest)
        ids = [draw.randrange(20, 400) for _ in range(prompt + answer)] + [EOS]
        mask = [0] * prompt + [1] * (answer + 1)
        values = [float(number * 100 + at) for at in range(len(ids))]
        rows.append({"input_ids": ids, "loss_mask": mask, "logprobs": values, "reward": number / 8})
    return rows


def write(folder: Path, rows: list[Row], name: str = "rows.parquet") -> Path:
    pq.write_table(pa.Table.from_pylist(rows), folder / name, row_group_size=50)
    return folder / name


def config_of(source: Path, tokenizer: Path, **settings: Any) -> PipelineConfig:
    given: Row = {
        "name": settings.pop("name", "made"),
        "dataset": {"name": str(source), "token_columns": ["logprobs"], **settings.pop("dataset", {})},
        "tokenizer": {"name_or_path": str(tokenizer), "max_length": LONGEST, **settings.pop("more", {})},
        "prompt_template": {"format_type": "tokens"},
        "validation": {"max_reject_fraction": 0.5},
    }
    return PipelineConfig.from_mapping(given | settings)


def built(config: PipelineConfig, folder: Path, workers: int = 1) -> Build:
    made = Build(config, ArtifactStore(folder), ComputeEngine(workers), chunk_size=SMALL)
    made.reports = {report.name: report for report in made.run_all()}  # pyright: ignore[reportAttributeAccessIssue]
    return made


def batches(name: str, folder: Path, **options: Any) -> Iterator[Row]:
    given = {"batch_size": 7, "shuffle": "none", "padding": "longest", **options}
    return iter(TokenLoader(open_dataset(name, store=folder), **given))


STRATEGIES = ["truncate_right", "truncate_left", "truncate_middle", "split", "drop"]


@pytest.mark.parametrize("packing", ["none", "best_fit", "concat"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_numbers_follow_their_tokens(strategy: str, packing: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = rollouts(200)
    token_of = {value: token for row in rows for value, token in zip(row["logprobs"], row["input_ids"], strict=True)}
    trained = {value for row in rows for value, mask in zip(row["logprobs"], row["loss_mask"], strict=True) if mask}
    length = {"strategy": strategy, "packing": packing}
    config = config_of(write(tmp_path, rows), tokenizer_folder, length=length)
    built(config, tmp_path / "store")
    seen = 0
    for batch in batches("made", tmp_path / "store", padding_side="left" if packing == "none" else "right"):
        assert batch["logprobs"].shape == batch["input_ids"].shape
        assert batch["logprobs"].dtype.is_floating_point
        own = batch["attention_mask"] == 1
        assert (batch["logprobs"][~own] == 0).all()
        found = list(zip(batch["logprobs"][own].tolist(), batch["input_ids"][own].tolist(), strict=True))
        assert found == [(value, token_of[value]) for value, _ in found]
        of_loss = batch["labels"][own] != -100
        assert {value for (value, _), own in zip(found, of_loss.tolist(), strict=True) if own} <= trained
        seen += len(found)
    assert seen > 1000


def test_rewards_are_kept_beside_them_and_exports_have_both(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = rollouts(30, longest=8)
    config = config_of(write(tmp_path, rows), tokenizer_folder, dataset={"keep_columns": ["reward"]})
    built(config, tmp_path / "store")
    table = pa.concat_tables(row_tables(open_dataset("made", store=tmp_path / "store")))
    assert table["logprobs"].to_pylist() == [row["logprobs"] for row in rows]
    assert table["reward"].to_pylist() == [row["reward"] for row in rows]
    row = open_dataset("made", store=tmp_path / "store")[3]
    assert row["logprobs"].tolist() == rows[3]["logprobs"]
    assert row["reward"] == rows[3]["reward"]


def test_a_dataset_without_the_column_has_zeros_in_a_mixture(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows, store = rollouts(40, longest=8), tmp_path / "store"
    built(config_of(write(tmp_path, rows), tokenizer_folder), store)
    plain = config_of(
        write(tmp_path, rows, "plain.parquet"), tokenizer_folder, name="plain", dataset={"token_columns": []}
    )
    built(plain, store)
    opened = {name: open_dataset(name, store=store) for name in ("made", "plain")}
    mixed = MixedDataset(opened, {"made": 1, "plain": 1}, "rows")
    sums = [float(batch["logprobs"].sum()) for batch in TokenLoader(mixed, batch_size=1, padding="longest")]
    assert len(sums) == 80
    assert sums.count(0.0) == 40


def test_workers_change_no_byte_and_one_more_row_reuses_the_others(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = rollouts(3000)
    source = write(tmp_path, rows)
    config = config_of(source, tokenizer_folder, length={"packing": "best_fit"})
    one, two = (built(config, tmp_path / f"store{workers}", workers) for workers in (1, 2))
    digests = [{name: report.digest for name, report in made.reports.items()} for made in (one, two)]  # pyright: ignore[reportAttributeAccessIssue]
    assert digests[0] == digests[1]
    write(tmp_path, [*rows, *rollouts(1, 5)])
    again = built(config, tmp_path / "store1")
    for name in ("columns", "prompts", "tokens", "sequences"):
        report = again.reports[name]  # pyright: ignore[reportAttributeAccessIssue]
        assert report.chunks - report.chunks_reused <= 2 < report.chunks


def test_a_loader_resumes_with_the_same_batches(tmp_path: Path, tokenizer_folder: Path) -> None:
    built(config_of(write(tmp_path, rollouts()), tokenizer_folder), tmp_path / "store")
    opened = open_dataset("made", store=tmp_path / "store")
    whole = [*TokenLoader(opened, batch_size=16, seed=1)]
    loader = TokenLoader(opened, batch_size=16, seed=1)
    first = iter(loader)
    for _ in range(5):
        next(first)
    resumed = TokenLoader(opened, batch_size=16, seed=1)
    resumed.load_state_dict(loader.state_dict())
    rest = [*resumed]
    assert len(rest) == len(whole) - 5
    for one, other in zip(rest, whole[5:], strict=True):
        assert (one["logprobs"] == other["logprobs"]).all()
        assert (one["input_ids"] == other["input_ids"]).all()


def test_rows_encoded_on_the_fly_are_those_of_a_build(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = rollouts(50)
    config = config_of(write(tmp_path, rows), tokenizer_folder, length={"strategy": "split"})
    made = built(config, tmp_path / "store")
    sequences = pa.concat_tables([chunk.load() for chunk in made.input_chunks("sequences")])
    encoded = PromptEngine(config).encode(pa.Table.from_pylist(rows))
    assert encoded.drop_columns(["rows"]).to_pylist() == sequences.drop_columns(["rows"]).to_pylist()


def test_streams_and_encoded_datasets_have_the_numbers_too(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = rollouts(50, longest=10)
    expected = sorted(value for row in rows for value in row["logprobs"])
    config = config_of(write(tmp_path, rows), tokenizer_folder)
    for dataset in (
        PreprocessedDataset(pa.Table.from_pylist(rows), PromptEngine(config)),
        PreprocessedDataset(rows, PromptEngine(config)),
    ):
        assert sorted(value for row in dataset for value in row["logprobs"].tolist()) == expected
    streaming = config_of(tmp_path / "rows.parquet", tokenizer_folder, dataset={"streaming": True})
    loader = DataPipeline.from_config(streaming, store=tmp_path / "store").unwrap().get_dataloader("train").unwrap()
    values = [batch["logprobs"][batch["attention_mask"] == 1].tolist() for batch in loader]
    assert sorted(value for batch in values for value in batch) == expected


def test_ids_that_the_tokenizer_lacks_are_rejected(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = rollouts(30, longest=5)
    rows[4]["input_ids"][2], rows[9]["input_ids"][0] = 500, (1 << 32) - 1
    config = config_of(write(tmp_path, rows), tokenizer_folder)
    made = built(config, tmp_path / "store")
    (chunk,) = made.manifest("tokens").chunks
    found = made.store.objects.get(chunk.rejects or "").to_pylist()
    assert [(row["_row"], row["code"], row["excerpt"]) for row in found] == [
        (4, "unknown_id", "token 2: 500"),
        (9, "unknown_id", "token 0: 4294967295"),
    ]
    assert [row for batch in batches("made", tmp_path / "store") for row in batch["logprobs"][:, 0].tolist()] == [
        row["logprobs"][0] for row in rows if row not in (rows[4], rows[9])
    ]
    with pytest.raises(
        DataValidationError, match=r"set tokenizer\.name_or_path to the tokenizer that the ids come from"
    ):
        strict = config_of(tmp_path / "rows.parquet", tokenizer_folder, validation={})
        built(strict, tmp_path / "other")


def prompt(**settings: Any) -> Row:
    return {"prompt_template": {"format_type": "tokens", **settings}}


REFUSED: dict[str, tuple[Row, str]] = {
    "add_eos": (prompt(add_eos=True), "prompt_template.add_eos: has no effect"),
    "add_bos": (prompt(add_bos=False), "prompt_template.add_bos: has no effect"),
    "system": (prompt(system="Be brief."), "prompt_template.system: has no effect"),
    "train": ({"more": {"name_or_path": None, "train": {}, "special_tokens": {"eos": "</s>"}}}, "set name_or_path"),
    "smart": ({"length": {"strategy": "smart"}}, "which token ids do not have"),
    "drop_turns": ({"length": {"strategy": "drop_turns"}}, "use truncate_right"),
    "stride": ({"length": {"stride": 4}}, "has no effect with strategy: truncate_right"),
    "dedup": ({"dedup": {"exact": "row"}}, "compares texts"),
    "both": ({"dataset": {"keep_columns": ["logprobs"]}}, "also in keep_columns"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_for_texts_are_refused(case: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    settings, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        built(config_of(write(tmp_path, rollouts(20)), tokenizer_folder, **settings), tmp_path / "store")


def yaml_of(folder: Path, source: Path, tokenizer: Path) -> str:
    file = folder / "made.yaml"
    file.write_text(f"dataset: {{name: {source.name}}}\ntokenizer: {{name_or_path: {tokenizer}}}\n")
    return str(file)


def test_a_build_says_what_it_assumes_of_rows_without_a_mask(
    tmp_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    parts = [made.encode(text).ids for text in ("the quic", "k brown fox")]
    whole = [made.encode("the quick brown fox").ids] * 3
    rows = [{"input_ids": [*parts[0], *parts[1]]}] * 2 + [{"input_ids": ids} for ids in whole]
    assert main(["build", yaml_of(tmp_path, write(tmp_path, rows), tokenizer_folder)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "all tokens are trained, because no column says which are" in said
    assert "5 of 5 runs of trained tokens do not end with a control token" in said
    assert "gives other ids in 2 of 5 documents compared" in said
    assert "such as rows.parquet row 0, rows.parquet row 1; the ids of the data are kept" in said


def test_long_documents_are_not_tokenized_again(
    tmp_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    short, long = (
        [*made.encode(text).ids, *made.encode("k brown fox").ids] for text in ("the quic", "a " * 40 + "quic")
    )
    monkeypatch.setattr("tokenloom.assets.tokens.stage.LONGEST_COMPARED", len(short))
    source = write(tmp_path, [{"input_ids": ids} for ids in (long, short, long)])
    assert main(["build", yaml_of(tmp_path, source, tokenizer_folder)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "gives other ids in 1 of 1 documents compared" in said
    assert "such as rows.parquet row 1; the ids of the data are kept" in said


def test_previews_and_starter_files_show_what_is_trained(
    tmp_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    asked, answered = made.encode("what is the answer").ids, [*made.encode("hello world").ids, EOS]
    labels = [-100] * len(asked) + answered
    source = write(tmp_path, [{"input_ids": asked + answered, "labels": labels}] * 3)
    assert main(["inspect", source.name, "--tokenizer", str(tokenizer_folder), "--out", "made.yaml"]) == 0
    said = capsys.readouterr().out
    assert "Read as token ids." in said
    assert "what is the answer" in said
    text = Path("made.yaml").read_text(encoding="utf-8")
    assert "format_type: tokens" in text
    for _ in range(2):  # straight from the source, then as built
        assert main(["preview", "made.yaml", "--row", "0"]) == 0
        assert (
            "what is the answer\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}hello world<|endoftext|>"
            in capsys.readouterr().out
        )
        assert main(["build", "made.yaml"]) == 0
        capsys.readouterr()
    assert main(["preview", "made.yaml", "--inference"]) == 2
    assert main(["inspect", source.name, "--out", "-"]) == 0
    assert "name_or_path: <folder or hub id>" in capsys.readouterr().out


def test_weights_of_rows_multiply_those_of_tokens(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows: list[Row] = [
        row | {"quality": 0.5 if number % 2 else 2.0} for number, row in enumerate(rollouts(20, longest=5))
    ]
    mapping = {"input_ids": "input_ids", "loss_mask": "loss_mask", "weight": "quality"}
    built(config_of(write(tmp_path, rows), tokenizer_folder, dataset={"column_mapping": mapping}), tmp_path / "store")
    table = pa.concat_tables(row_tables(open_dataset("made", store=tmp_path / "store")))
    expected = [[float(row["quality"]) * mask for mask in row["loss_mask"]] for row in rows]
    assert table["loss_weights"].to_pylist() == expected
    assert np.array_equal(table["labels"][0].values.to_numpy() != -100, np.array(rows[0]["loss_mask"]) == 1)
