"""A YAML that mixes datasets: what it builds, the batches that it gives, what it refuses, and what commands say."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from support.canonical_tables import CHATML
from support.datasets_on_disk import STAGES
from support.loaded_rows import rows_of, settings, write_rows
from support.masked_platform import needs_file_locks
from support.store_files import flip, object_path
from tokenloom import DataPipeline, open_dataset
from tokenloom.assets.building.target import open_target
from tokenloom.cli import main
from tokenloom.config import MixtureConfig, PipelineConfig
from tokenloom.config.dataset import load_config
from tokenloom.errors import ConfigError, DatasetNotFoundError, MixtureEndedError, TokenloomError
from tokenloom.loaders import MixedDataset, TokenLoader, open_mixture
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.gc import collect

ROWS = {"a": 100, "b": 60, "c": 30}
Write = Callable[..., Path]
Texts = dict[str, list[str]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, write_config: Write, tokenizer_folder: Path) -> Path:
    """A folder with the YAMLs of a, b and `named` (in other.yaml), and a store in which only c is built."""
    folder = tmp_path_factory.mktemp("mixture") / "yamls"
    apart = folder.parent / "apart"
    apart.mkdir(parents=True)
    folder.mkdir()
    for name, count in ROWS.items():
        where = apart if name == "c" else folder
        rows = write_rows(folder.parent / "rows.jsonl", count, seed=ord(name))
        lines = (json.dumps({"q": f"{name} {row['q']}", "a": row["a"]}) for row in rows)
        (where / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        declared = {"dataset": {"name": f"{name}.jsonl", "val_split": 0.1}, **settings(tokenizer_folder)}
        path = write_config(where, "other" if name == "b" else name, **declared)
        path.write_text(path.read_text() + f"name: {name}\n")
    DataPipeline.from_config(apart / "c.yaml", folder / "store").unwrap().build().unwrap()
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole.parent, tmp_path / "project") / "yamls"


def mix(folder: Path, *sources: Any, name: str = "mix", **sections: Any) -> Path:
    """A YAML that mixes sources, each a name or its settings."""
    entries = [{"dataset": source} if isinstance(source, str) else source for source in sources]
    path = folder / f"{name}.yaml"
    text = json.dumps({"mixture": entries, **sections}, indent=0)
    path.write_text(text.replace("1e-09", "1.0e-09"), encoding="utf-8")
    return path


def pipeline(path: Path) -> DataPipeline:
    return DataPipeline.from_config(path, path.parent / "store").unwrap()


def loader(path: Path, split: str = "train", **how: Any) -> TokenLoader:
    found = pipeline(path).get_dataloader(split, **how).unwrap()
    assert isinstance(found, TokenLoader)
    return found


def questions(batches: Any, tokenizer_folder: Path) -> list[str]:
    """What the rows of batches ask: they begin with their dataset's name, and all differ."""
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    return [tokenizer.decode(list(ids)).partition("\n")[0] for ids, _ in rows_of(batches)]


THREE = (
    {"dataset": "a", "weight": 0.5, "by": "rows"},
    {"dataset": "b", "weight": 0.3},
    {"dataset": "c", "weight": 2e-1},
)


def test_every_window_has_its_shares(folder: Path, tokenizer_folder: Path) -> None:
    asked = questions(loader(mix(folder, *THREE)), tokenizer_folder)
    names = "".join(question[0] for question in asked)
    splits = {name: len(open_dataset(name, "train", folder / "store")) for name in ROWS}
    assert len(names) == sum(splits.values())
    for name, share in (("a", 0.5), ("b", 0.3), ("c", 0.2)):
        for length in (1, 10, 33, len(names)):
            counts = [names[at : at + length].count(name) for at in range(len(names) - length + 1)]
            assert max(abs(count - share * length) for count in counts) <= 1 + share
        own = [question for question in asked if question[0] == name]
        for begin in range(0, len(own), splits[name]):  # each row once before any comes again
            epoch = own[begin : begin + splits[name]]
            assert len(set(epoch)) == len(epoch)


def test_weights_of_tokens_are_shares_of_tokens(folder: Path) -> None:
    given = (0.25, 0.75)
    path = mix(folder, {"dataset": "a", "weight": given[0]}, {"dataset": "b", "weight": given[1]})
    mixed = pipeline(path).get_dataset().unwrap()
    assert isinstance(mixed, MixedDataset)
    rates = [Fraction(str(w)) * len(each) / each.tokens for w, each in zip(given, mixed.datasets.values(), strict=True)]
    for share, rate, weight in zip(mixed.shares(), rates, given, strict=True):
        assert abs(share.taken - len(mixed) * rate / sum(rates)) < 1
        assert abs(share.token_share - weight) < 1 / len(mixed)
        assert share.epochs == share.taken / share.rows
    assert sum(share.taken for share in mixed.shares()) == len(mixed)


def test_what_is_missing_is_built_and_then_found(folder: Path) -> None:
    path = mix(folder, *THREE)
    first, again = (pipeline(path).build().unwrap() for _ in range(2))
    assert [report.name for report in first] == [f"{name}/{stage}" for name in ("a", "b") for stage in STAGES]
    assert {report.name for report in first if report.chunks_reused < report.chunks} >= {"a/raw", "b/sequences"}
    assert all(report.chunks_reused == report.chunks for report in again)
    alone = DataPipeline.from_config(folder / "other.yaml", folder / "store").unwrap().build().unwrap()
    assert [report.digest for report in alone] == [report.digest for report in again if report.name.startswith("b/")]


def test_a_changed_dataset_changes_the_mixture_and_computes_only_itself(folder: Path) -> None:
    path = mix(folder, "a", "b")
    pipeline(path).build().unwrap()
    before = open_mixture("mix", store=folder / "store")
    with (folder / "a.jsonl").open("a") as file:
        file.write('{"q": "a more", "a": "yes"}\n')
    DataPipeline.from_config(folder / "a.yaml", folder / "store").unwrap().build().unwrap()
    pinned = open_mixture("mix", store=folder / "store")
    assert (pinned.digest, len(pinned)) == (before.digest, len(before))
    assert all(report.chunks_reused == report.chunks for report in pipeline(path).build().unwrap())
    after = open_mixture("mix", store=folder / "store")
    assert (after.digest == before.digest, len(after)) == (False, len(before) + 1)


def test_gc_leaves_what_a_mixture_reads(folder: Path) -> None:
    path, store = mix(folder, "a", "b"), ArtifactStore(folder / "store")
    pipeline(path).build().unwrap()
    before = rows_of(TokenLoader(open_mixture("mix", store=folder / "store")))
    for number in range(2):
        write_rows(folder / "a.jsonl", 40, seed=number)
        DataPipeline.from_config(folder / "a.yaml", folder / "store").unwrap().build().unwrap()
    assert collect(store, keep=1, older_than=timedelta(0), delete=True).objects
    assert rows_of(TokenLoader(open_mixture("mix", store=folder / "store"))) == before
    assert main(["verify", "mix", "--store", str(folder / "store")]) == 0
    pipeline(path).build().unwrap()
    pinned = {store.manifest("mix", "mixture").pinned["a"], store.manifest_digest("a")}
    assert len(pinned) == 1


@needs_file_locks
def test_a_build_publishes_and_opens_its_own_versions_whatever_others_publish(folder: Path) -> None:
    path, store = mix(folder, "a", "b", "c"), ArtifactStore(folder / "store")

    def publish_more(name: str) -> None:
        """Publish other rows of a dataset, then remove what gc can."""
        yaml = {"a": "a.yaml", "b": "other.yaml", "c": "../apart/c.yaml", "mix": "mix.yaml"}[name]
        for source in (folder / yaml).parent.glob(f"{name}.jsonl"):
            source.write_text(source.read_text() + json.dumps({"q": f"{name} more", "a": "yes"}) + "\n")
        DataPipeline.from_config(folder / yaml, folder / "store").unwrap().build().unwrap()
        collect(store, keep=1, older_than=timedelta(0), delete=True)

    target, expected = open_target(load_config(path), store), {"c": open_dataset("c", store=store.address).version}
    for dataset, reports in target.run_each():
        expected[dataset] = [report.digest for report in reports][-1]
        publish_more(dataset)
        publish_more("c")
    published = target.publish()
    assert published is not None
    assert {each["dataset"]: each["digest"] for each in published[0].facts["datasets"]} == expected
    rows = rows_of(TokenLoader(published[1]))
    publish_more("mix")
    assert open_mixture("mix", store=store.address).digest != published[1].digest
    assert rows_of(TokenLoader(target.open_split("train"))) == rows
    alone = open_target(load_config(folder / "a.yaml"), store)
    built = list(alone.run_all())[-1].digest
    publish_more("a")
    assert alone.open_split("train").versions == {"a": built}
    assert main(["verify", "--store", store.address]) == 0


@pytest.mark.parametrize("how", [{"batch_size": 7, "seed": 5}, {"token_budget": 96}, {"shuffle": "block"}])
def test_the_loader_is_that_of_the_settings(folder: Path, how: dict[str, Any]) -> None:
    path = mix(folder, *THREE, dataloader=how)
    found = [batch["input_ids"].tolist() for batch in loader(path)]
    datasets = {name: open_dataset(name, "train", folder / "store") for name in ROWS}
    mixed = MixedDataset(datasets, {"a": 0.5, "b": 0.3, "c": 0.2}, by="rows")
    by_hand = TokenLoader(mixed, **{"batch_size": 8, "seed": 0, **how})
    assert found == [batch["input_ids"].tolist() for batch in by_hand]
    assert rows_of(loader(path, shuffle=False))[:5] != rows_of(found_again := loader(path))[:5]
    assert len(found_again) == len(found)


def test_other_splits_are_mixed_in_their_order(folder: Path, tokenizer_folder: Path) -> None:
    asked = questions(loader(mix(folder, *THREE[:2]), "validation"), tokenizer_folder)
    for name in "ab":
        lines = (folder / f"{name}.jsonl").read_text().splitlines()
        places = {json.loads(line)["q"].strip(): number for number, line in enumerate(lines)}
        order = [places[question.strip()] for question in asked if question[0] == name]
        held = len(open_dataset(name, "validation", folder / "store"))
        assert order[:held] == sorted(order[:held])


@pytest.mark.parametrize(("world", "batch"), [(1, 8), (2, 5), (3, 4)])
def test_a_state_resumes_through_the_pipeline(folder: Path, world: int, batch: int) -> None:
    path = mix(folder, *THREE, dataloader={"seed": 9})
    whole = rows_of(loader(path))
    stopped = loader(path)
    batches = iter(stopped)
    before = rows_of([next(batches) for _ in range(3)])
    state = json.loads(json.dumps(stopped.state_dict()))
    mix(folder, *THREE, dataloader={"seed": 9, "batch_size": batch})
    resumed = [loader(path, rank=rank, world_size=world) for rank in range(world)]
    for each in resumed:
        each.load_state_dict(state)
    after = [row for step in zip(*resumed, strict=True) for part in step for row in rows_of([part])]
    assert before + after == whole
    mix(folder, {**THREE[0], "weight": 0.6}, *THREE[1:], dataloader={"seed": 9})
    with pytest.raises(TokenloomError, match="data is"):
        loader(path).load_state_dict(state)


def test_trace_names_the_rows_of_the_batch(folder: Path, tokenizer_folder: Path) -> None:
    made = loader(mix(folder, *THREE))
    for step, batch in enumerate(made):
        traced = made.trace(step)
        for row, asked, ids, mask in zip(
            traced, questions([batch], tokenizer_folder), batch["input_ids"], batch["attention_mask"], strict=True
        ):
            assert torch.equal(
                open_dataset(row.dataset, row.split, folder / "store")[row.row]["input_ids"], ids[mask == 1]
            )
            (place,) = row.places
            file, _, line = place.rpartition(":")
            lines = (folder.parent / "apart" if row.dataset == "c" else folder).joinpath(file).read_text().splitlines()
            assert json.loads(lines[int(line) - 1])["q"].strip() == asked.strip()


def test_epochs_cap_the_whole_run(folder: Path, tokenizer_folder: Path) -> None:
    capped = [{"dataset": "a", "epochs": 1, "by": "rows"}, {"dataset": "b", "epochs": 0.5}]
    made = loader(mix(folder, *capped))
    sizes = {name: len(open_dataset(name, "train", folder / "store")) for name in "ab"}
    counted = Counter(question[0] for question in questions(made, tokenizer_folder))
    assert counted == {"a": sizes["a"], "b": sizes["b"] // 2}
    with pytest.raises(
        MixtureEndedError, match=f"ends after {sum(counted.values())} rows, when all its datasets have reached"
    ):
        rows_of(made)


def test_a_limit_builds_and_mixes_that_many_rows(folder: Path) -> None:
    assert main(["build", str(mix(folder, "a", "b")), "--limit", "20", "--store", str(folder / "store")]) == 0
    mixed = open_mixture("mix@20", store=folder / "store")
    assert list(mixed.datasets) == ["a@20", "b@20"]
    assert all(len(each) <= 20 for each in mixed.datasets.values())


def told(folder: Path, *sources: Any, **sections: Any) -> list[str]:
    """The faults of a mixture, built, without the file's name."""
    path = mix(folder, *sources, **sections)
    made = DataPipeline.from_config(path, folder / "store").and_then(lambda pipeline: pipeline.build())
    error = made.unwrap_err()
    assert error.exit_code == 2, error
    return [line.removeprefix(f"{path}:") for line in str(error).splitlines()]


@pytest.mark.parametrize(
    ("sources", "sections", "fault"),
    [
        ([], {}, r"2: mixture: the list is empty; write \[\{dataset: a, weight: 0.7\}, .*"),
        (["a"], {"dataset": {"name": "x"}}, r"\d+: dataset: not a setting of a mixture; set it in the YAMLs of the .*"),
        (["a"], {"tokenizer": {}}, r"\d+: tokenizer: not a setting of a mixture; .*"),
        (["a"], {"keep": "sequences"}, r"\d+: keep: not a setting of a mixture; .*"),
        (["a"], {"dataloadr": {}}, r"\d+: dataloadr: unknown setting; did you mean dataloader\?"),
        ([{"dataset": "a", "wieght": 1}], {}, r"5: mixture.0.wieght: unknown setting; did you mean weight\?"),
        ([{"dataset": "a", "weight": 0}], {}, r"5: mixture.0.weight: must be greater than 0, got 0"),
        ([{"dataset": "a", "epochs": -1}], {}, r"5: mixture.0.epochs: must be greater than 0, got -1"),
        ([{"dataset": "a", "by": "row"}], {}, r"5: mixture.0.by: 'row' is not one of .*; did you mean rows\?"),
        ([{"weight": 1}], {}, r"3: mixture.0.dataset: missing; it is required"),
        (["a", "b", "a"], {}, r"10: mixture.2.dataset: 'a' is listed twice; list it once, with the sum of the weights"),
        ([THREE[0], {"dataset": "b", "by": "tokens"}], {}, r"10: mixture.1.by: 'tokens' differs from 'rows' in .*"),
        (["mix"], {}, r"4: mixture.0.dataset: 'mix' is the mixture itself"),
        (["a", "cc"], {}, r"7: mixture.1.dataset: no YAML in this folder declares 'cc', and the store does not .*"),
        (["othr"], {}, r"4: mixture.0.dataset: no YAML in .* declares 'othr', and the store does not hold it"),
        (["a", {"dataset": "b", "weight": 1e-9}], {}, r"2: mixture: the weight of source 'b' is too small: .*"),
        ([{"dataset": "a", "epochs": 1e-9}], {}, r"2: mixture: 1e-09 epochs of source 'a', which has \d+ rows, are .*"),
    ],
)  # fmt: skip
def test_each_fault_has_its_line_and_remedy(
    folder: Path, sources: list[Any], sections: dict[str, Any], fault: str
) -> None:
    (found,) = told(folder, *sources, **sections)
    assert re.fullmatch(fault, found), found


def test_a_near_name_is_offered(folder: Path, write_config: Write, tokenizer_folder: Path) -> None:
    write_config(folder, "wikipedia", dataset={"name": "a.jsonl"}, **settings(tokenizer_folder))
    (found,) = told(folder, "wikpedia")
    assert found.endswith("; did you mean wikipedia?")


def test_names_that_are_wrong_beside_the_mixture(folder: Path, write_config: Write, tokenizer_folder: Path) -> None:
    mix(folder, "a", "b", name="inner")
    assert told(folder, "inner") == [
        "4: mixture.0.dataset: 'inner' is itself a mixture; list its datasets instead: a, b"
    ]
    path = write_config(folder, "twice", dataset={"name": "a.jsonl"}, **settings(tokenizer_folder))
    path.write_text(path.read_text() + "name: b\n")
    (found,) = told(folder, "b")
    assert "'b' is declared by both" in found and "other.yaml" in found and "twice.yaml" in found
    write_config(folder, "broken", dataset={"nam": "a.jsonl"})
    assert [line.removeprefix(f"{folder}/") for line in told(folder, "a", "broken")] == [
        "broken.yaml:1: dataset.name: missing; it is required",
        "broken.yaml:2: dataset.nam: unknown setting; did you mean name?",
    ]
    (folder / "broken.yaml").unlink()
    (folder / "twice.yaml").unlink()
    assert pipeline(mix(folder, "a", "b")).build().is_ok()


MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "packed": ({"length": {"packing": "concat"}}, "odd is packed, but a is not; .*"),
    "streaming": ({"dataset": {"name": "a.jsonl", "streaming": True}}, "odd has dataset.streaming: true, .*"),
    "padding": ({"tokenizer": {"padding": "longest"}}, "tokenizer.padding is max_length in a and longest in odd; .*"),
    "side": ({"tokenizer": {"padding_side": "left"}}, "tokenizer.padding_side is right in a and left in odd; .*"),
    "tokenizer": (
        {"tokenizer": {"name_or_path": "other"}},
        r"a has the tokenizer .*/tokenizer\d+ and odd has other, .*",
    ),
    "pairs": (
        {"dataset": {"name": "pairs.jsonl"}, "tokenizer": {"chat_template": CHATML}, "prompt_template": {}},
        "each row of a is a sequence, but each row of odd is a pair",
    ),
    "splits": ({"dataset": {"name": "saved"}}, "the datasets have no split in common: a has .*train.*; odd has test"),
}


UNSEEN = ("streaming", "padding", "side")
"""What nothing of is in a dataset that was built."""


@pytest.mark.parametrize(
    ("kind", "held"), [(kind, held) for kind in MISFITS for held in (False, True) if not (held and kind in UNSEEN)]
)
def test_datasets_that_do_not_fit_are_refused_in_one_sentence(
    folder: Path, write_config: Write, tokenizer_folder: Path, kind: str, held: bool
) -> None:
    """By their YAMLs where these show it, else by what was built."""
    changes, sentence = MISFITS[kind]
    if kind == "tokenizer":
        shutil.copytree(tokenizer_folder, folder / "other")
        found = json.loads((folder / "other" / "tokenizer.json").read_text())
        found["model"]["merges"] = found["model"]["merges"][:-50]
        (folder / "other" / "tokenizer.json").write_text(json.dumps(found))
    if kind == "pairs":
        said = [{"role": "user", "content": "so?"}]
        row = {
            "chosen": [*said, {"role": "assistant", "content": "yes"}],
            "rejected": [*said, {"role": "assistant", "content": "no"}],
        }
        (folder / "pairs.jsonl").write_text(f"{json.dumps(row)}\n" * 5)
    if kind == "splits":
        import datasets

        datasets.DatasetDict({"test": datasets.Dataset.from_list([{"q": "a", "a": "b"}] * 3)}).save_to_disk(
            str(folder / "saved")
        )
    sections = {"dataset": {"name": "a.jsonl"}, **settings(tokenizer_folder)}
    sections = {name: {**value, **changes.get(name, {})} for name, value in {**sections, "length": {}}.items()}
    if kind == "pairs":
        sections["prompt_template"] = {}
    odd = write_config(folder, "odd", **sections)
    if held:
        DataPipeline.from_config(odd, folder / "store").unwrap().build().unwrap()
        odd.unlink()
        of_both = {
            "packed": "of a and odd, only odd is packed; .*",
            "tokenizer": "a and odd were built with different .*",
        }
        sentence = of_both.get(kind, sentence)
    (found,) = told(folder, "a", "odd")
    assert re.fullmatch(rf"2: mixture: {sentence}", found), found
    with pytest.raises(DatasetNotFoundError):
        open_mixture("mix", store=folder / "store")


def test_a_tokenizer_trained_for_one_serves_the_others(folder: Path, write_config: Write) -> None:
    trained = {"train": {"vocab_size": 400}, "special_tokens": {"eos": "<|endoftext|>", "pad": "<|pad|>"}}
    prompt = {"template": "{q}\n{a}", "label_column": "a"}
    for name in ("first", "second"):
        write_config(folder, name, dataset={"name": "a.jsonl"}, tokenizer=trained, prompt_template=prompt)
    (found,) = told(folder, "first", "second")
    assert "first and second each train their own tokenizer" in found
    DataPipeline.from_config(folder / "first.yaml", folder / "store").unwrap().build().unwrap()
    of_first = open_dataset("first", store=folder / "store").tokenizer_path
    chat = {"name_or_path": of_first, "chat_template": CHATML}
    write_config(folder, "second", dataset={"name": "b.jsonl"}, tokenizer=chat, prompt_template=prompt)
    assert pipeline(mix(folder, "first", "second")).build().is_ok()


def test_a_mixture_of_the_store_is_no_dataset_and_the_other_way_round(folder: Path) -> None:
    path, store = mix(folder, "a", "b"), folder / "store"
    with pytest.raises(DatasetNotFoundError, match="no dataset 'mix'"):
        open_mixture("mix", store=store)
    pipeline(path).build().unwrap()
    with pytest.raises(
        DatasetNotFoundError, match="'mix' is a mixture; open it with `open_mixture`, or one of its datasets: a, b"
    ):
        open_dataset("mix", store=store)
    with pytest.raises(DatasetNotFoundError, match="'a' is a dataset, not a mixture; open it with `open_dataset`"):
        open_mixture("a", store=store)
    with pytest.raises(DatasetNotFoundError, match="dataset 'a' has no split 'tset'"):
        open_mixture("mix", "tset", store=store)


def test_what_only_datasets_have_is_refused(folder: Path) -> None:
    made = pipeline(mix(folder, "a", "b"))
    with pytest.raises(ConfigError, match="mix is a mixture; each of its datasets has its own versions: a, b"):
        made.versions()
    for result in (made.get_dataset(version="abcd"), made.get_prompt_engine()):
        assert "each of its datasets has its own" in str(result.unwrap_err())
    assert made.get_tokenizer().unwrap().pad_token == "<|pad|>"


def test_each_kind_of_yaml_is_told_from_the_other(folder: Path) -> None:
    path = mix(folder, "a", "b", name="both", training={"learning_rate": 0.1})
    assert isinstance(load_config(path), MixtureConfig)
    assert isinstance(load_config(folder / "a.yaml"), PipelineConfig)
    with pytest.raises(
        ConfigError, match=r"both.yaml:2: mixture: both is a mixture, not a dataset; use one of .*: a, b"
    ):
        PipelineConfig.from_file(path)
    with pytest.raises(ConfigError, match="mixture: missing"):
        MixtureConfig.from_file(folder / "a.yaml")
    config = MixtureConfig.from_mapping({"name": "m", "mixture": [{"dataset": "a", "weight": 2}]})
    assert (config.names, config.by, config.dataset_name) == (("a",), "tokens", "m")


def said(capsys: pytest.CaptureFixture[str], folder: Path, *command: str) -> tuple[int, str, str]:
    code = main([*command, "--store", str(folder / "store")])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


def test_commands_take_a_mixture(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(mix(folder, *THREE))
    code, out, err = said(capsys, folder, "explain", path, "--json")
    foreseen = json.loads(out)
    names = [f"{name}/{stage}" for name in "ab" for stage in STAGES]
    assert (code, foreseen["dataset"], [stage["name"] for stage in foreseen["stages"]]) == (0, "mix", names)
    assert "used as stored, because no YAML in the folder of mix declares them: c" in err

    code, out, _ = said(capsys, folder, "build", path, "--json")
    built = json.loads(out)
    assert (code, built["dataset"], [stage["name"] for stage in built["stages"]]) == (0, "mix", names)
    assert sum(stage["fill"] > 0 for stage in built["stages"] if "fill" in stage) == 2
    assert [share["dataset"] for share in built["mixture"]["datasets"]] == ["a", "b", "c"]
    assert sum(share["taken"] for share in built["mixture"]["datasets"]) == built["mixture"]["rows"]
    assert built["mixture"]["digest"] == ArtifactStore(folder / "store").manifest("mix", "mixture").digest

    code, out, _ = said(capsys, folder, "explain", path)
    assert (code, out.count("nothing would be computed")) == (0, 2)
    code, out, _ = said(capsys, folder, "build", path, "--stage", "columns", "--json")
    assert (code, json.loads(out)["mixture"], len(json.loads(out)["stages"])) == (0, None, 6)

    code, out, _ = said(capsys, folder, "trace", path, "--step", "2", "--json")
    (batch,) = json.loads(out)["batches"]
    assert [(row["dataset"], row["row"]) for row in batch["rows"]] == [
        (row.dataset, row.row) for row in loader(Path(path)).trace(2)
    ]
    assert said(capsys, folder, "gc")[0] == 0


@pytest.mark.parametrize("target", ["mix", "mix.yaml", None])
def test_verify_finds_damage_in_the_datasets_of_a_mixture(
    folder: Path, target: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = mix(folder, "a", "c")
    named = [str(path) if target == path.name else target] if target else []
    pipeline(path).build().unwrap()
    assert said(capsys, folder, "verify", *named)[0] == 0
    store = ArtifactStore(folder / "store")
    flip(object_path(folder / "store", store.manifest("c").chunks[0].output), 2000)
    code, out, _ = said(capsys, folder, "verify", *named)
    assert (code, "c/sequences: output" in out) == (4, True)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["preview", "mix.yaml"], "mix is a mixture, not a dataset; use one of its datasets or their YAMLs: a, b"),
        (["inspect", "mix.yaml", "--out", "x.yaml"], "--out: inspect writes no YAML for a mixture; omit it"),
        (["versions", "mix.yaml"], "'mix' is a mixture; open it with `open_mixture`, or one of its datasets: a, b"),
        (["diff", "mix", "a"], "'mix' is a mixture; open it with `open_mixture`, or one of its datasets: a, b"),
        (["trace", "end.yaml", "--step", "1000"], "the mixture ends after"),
        (["build", "mix.yaml", "--stage", "raws"], "--stage: 'raws' is not one of raw, "),
    ],
)
def test_what_makes_no_sense_is_told_in_one_sentence(
    folder: Path, command: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    pipeline(mix(folder, "a", "b")).build().unwrap()
    pipeline(mix(folder, {"dataset": "a", "epochs": 1}, name="end")).build().unwrap()
    code, out, err = said(capsys, folder, *command)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert sentence in err


def test_by_size_an_epoch_has_each_row_of_all_datasets_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed = mix(folder, *({"dataset": name, "weight": "size"} for name in "abc"))
    pipeline = DataPipeline.from_config(mixed, folder / "store").unwrap()
    pipeline.build().unwrap()
    dataset = pipeline.get_dataset("train").unwrap()
    assert isinstance(dataset, MixedDataset)
    assert [(share.taken, share.epochs) for share in dataset.shares()] == [
        (share.rows, 1.0) for share in dataset.shares()
    ]
    loader = TokenLoader(dataset, batch_size=7, padding="longest", seed=3)
    alone = [
        row
        for name in "abc"
        for row in rows_of(TokenLoader(open_dataset(name, store=folder / "store"), batch_size=7, padding="longest"))
    ]
    assert Counter(rows_of(loader)) == Counter(alone)
    opened = open_mixture("mix", store=folder / "store")
    assert opened.digest == dataset.digest
    capsys.readouterr()
    assert main(["inspect", str(mixed), "--store", str(folder / "store"), "--json"]) == 0
    shares = json.loads(capsys.readouterr().out)["shares"]
    assert [share["taken"] for share in shares] == [share.taken for share in dataset.shares()]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            [{"dataset": "a", "weight": "size"}, {"dataset": "b", "weight": 0.5}],
            "mixture.1.weight: 0.5 does not go with",
        ),
        ([{"dataset": "a", "weight": "size"}, {"dataset": "b"}], "mixture.1.weight: 1 does not go with size"),
        ([{"dataset": "a", "weight": "size", "by": "rows"}], "mixture.0.by: has no effect with weight: size; omit it"),
        ([{"dataset": "a", "weight": "bytes"}], "mixture.0.weight"),
    ],
)
def test_wrong_sizes_are_refused(folder: Path, entries: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(mix(folder, *entries))


def test_a_mixture_without_weights_says_what_its_shares_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "without weights, each dataset has the same share of the tokens, however large it is"
    plain = mix(folder, "a", "c")
    assert main(["inspect", str(plain), "--store", str(folder / "store")]) == 0
    shown = capsys.readouterr().out
    assert "not built: a." in " ".join(shown.split()) and said in " ".join(shown.split())
    assert main(["build", str(plain), "--store", str(folder / "store")]) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    weighted = mix(folder, {"dataset": "a", "weight": 1}, {"dataset": "c", "weight": 1})
    assert main(["build", str(weighted), "--store", str(folder / "store")]) == 0
    assert said not in " ".join(capsys.readouterr().out.split())
