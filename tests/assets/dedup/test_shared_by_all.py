"""What nearly all rows have does not make two of them alike, and costs no comparisons."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from support.datasets_on_disk import TOKENIZER
from support.soak import some
from tokenloom.assets.building.build import Build
from tokenloom.assets.dedup import decision
from tokenloom.assets.dedup.decision import Decision, Rows, decide
from tokenloom.assets.dedup.stage import groups
from tokenloom.assets.fingerprints.minhash import bands_of
from tokenloom.assets.fingerprints.stage import Compared, fingerprints
from tokenloom.assets.stage.names import COLUMNS, DEDUP, FINGERPRINTS, RAW, SCHEMA
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore

GUIDE = " ".join(f"Rule {n}: answer with care, and cite what the manual says about topic {n}." for n in range(20))
LANDS = [("Peru", "Lima"), ("Chad", "N'Djamena"), ("Fiji", "Suva"), ("Mali", "Bamako")]


def chat(asked: str, said: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}


def asked(land: str) -> str:
    return f"What is the capital of {land}?"


TEXT = {"dataset": {"column_mapping": {"text": "text"}}, "prompt_template": {"format_type": "text"}}
CUSTOM = {"prompt_template": {"template": "{context}\n{question}\n{answer}", "label_column": "answer"}}
BOILERPLATE: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "before each question": ([chat(f"{GUIDE} {asked(land)}", city) for land, city in LANDS], {}),
    "after each question": ([chat(f"{asked(land)} {GUIDE}", city) for land, city in LANDS], {}),
    "a first turn": (
        [{"messages": [*chat(GUIDE, "Understood.")["messages"], *chat(asked(land), city)["messages"]]}
         for land, city in LANDS], {},
    ),
    "the same answer": ([chat(f"{GUIDE} Is {city} the capital of {land}?", "Yes.") for land, city in LANDS], {}),
    "an instruction": ([{"instruction": GUIDE, "input": asked(land), "output": city} for land, city in LANDS], {}),
    "a column": ([{"context": GUIDE, "question": asked(land), "answer": city} for land, city in LANDS], CUSTOM),
    "a prompt": ([{"prompt": f"{GUIDE} {asked(land)}", "completion": city} for land, city in LANDS], {}),
    "around a text": ([{"text": f"{GUIDE}\n{asked(land)} {city}\n{GUIDE.lower()}"} for land, city in LANDS], TEXT),
    "a preference": (
        [{"prompt": f"{GUIDE} {asked(land)}", "chosen": city, "rejected": "Paris"} for land, city in LANDS], {},
    ),
}  # fmt: skip
"""Four rows whose largest part is the same, and sections of the YAML."""


def dropped(folder: Path, lines: list[dict[str, Any]], dedup: dict[str, Any], **sections: Any) -> dict[int, int]:
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in lines))
    tokenizer = {**TOKENIZER, "train": {"vocab_size": 300}, "chat_template": "chatml", "max_length": 4096}
    settings = {"tokenizer": tokenizer, "dedup": dedup, **sections}
    settings["dataset"] = {"name": "rows.jsonl", **settings.get("dataset", {})}
    (folder / "small.yaml").write_text(yaml.safe_dump(settings))
    build = Build(PipelineConfig.from_file(folder / "small.yaml"), ArtifactStore(folder / "store"))
    for report in build.run_stages([RAW, SCHEMA, COLUMNS, FINGERPRINTS, DEDUP]):
        if report.name == DEDUP:
            assert any(
                "n-grams that nearly all rows have do not make two of them similar" in each for each in report.notices
            )
    found = groups(build.store, "small")
    return {line(row.place): line(group.kept) for group in found for row in group.repeats}


def line(place: str) -> int:
    return int(place.rpartition(":")[2]) - 1


@pytest.mark.parametrize("part", BOILERPLATE)
def test_rows_that_share_their_largest_part_with_all_others_stay(tmp_path: Path, part: str) -> None:
    """Each is there twice: the second goes."""
    lines, sections = BOILERPLATE[part]
    assert dropped(tmp_path, lines * 2, {"exact": None}, **sections) == {4 + number: number for number in range(4)}


WORDS = [f"word{number}" for number in range(3000)]
NEAR = Compared("text", ngram_size=5, bands=bands_of(0.8, 128)[0], band_rows=bands_of(0.8, 128)[1])


def decided(texts: list[str], threshold: float = 0.8, at: int = 1000) -> Decision:
    chunks = [texts[start : start + at] for start in range(0, len(texts), at)]
    tables = [pa.table({"_row": pa.array(range(len(some)), pa.int32()), "text": some}) for some in chunks]
    found = [fingerprints(table, NEAR).table for table in tables]
    rows = Rows([*map(len, chunks)], found.__getitem__, tables.__getitem__, [NEAR] * len(tables))
    return decide(rows, exact=True, threshold=threshold)


def own(count: int, seed: int, words: int = 12) -> list[str]:
    drawn = random.Random(seed)
    return [" ".join(drawn.choices(WORDS, k=words)) for _ in range(count)]


def test_a_few_rows_without_it_change_nothing() -> None:
    texts = [f"{GUIDE} {text}" for text in own(95, 1)] + own(5, 2)
    assert len(decided(texts).rows) == 0
    mixed = [f"{GUIDE} {text}" for text in own(50, 1)] + own(50, 2)
    assert len(decided(mixed).rows) > 40  # half of the rows is not nearly all


def test_rows_that_are_alike_without_it_go() -> None:
    long = own(1, 3, words=80)[0]
    texts = [f"{GUIDE} {text}" for text in [*own(30, 1, words=80), long, f"{long} more"]]
    found = decided(texts)
    assert (found.rows.tolist(), found.survivors.tolist(), found.shared > 100) == ([31], [30], True)
    alone = decided([*own(30, 1, words=80), long, f"{long} more"])
    assert np.array_equal(alone.rows, found.rows)
    assert abs(float(alone.similarities[0]) - float(found.similarities[0])) < 0.02


def test_a_row_without_more_is_not_like_the_others_but_like_its_twin() -> None:
    found = decided([*(f"{GUIDE} {text}" for text in own(30, 1)), GUIDE, GUIDE.upper()])
    assert (found.rows.tolist(), found.survivors.tolist()) == ([31], [30])


def test_rows_that_are_alike_only_without_it_stay() -> None:
    long = own(1, 3, words=40)[0]
    assert len(decided([*(f"{GUIDE} {text}" for text in own(40, 1)), f"{GUIDE} {long}", long]).rows) == 0


def test_order_and_chunks_change_nothing() -> None:
    texts = [f"{GUIDE} {text}" for text in own(150, 1)]
    texts += [f"{text} again" for text in texts[:20]] + own(8, 5)
    expected = {texts[row] for row in decided(texts).rows}
    first = sorted(texts)
    random.Random(4).shuffle(first)
    assert decided(first, at=7).shared == decided(texts).shared > 0
    assert {frozenset(text.removesuffix(" again") for text in expected)} == {
        frozenset(first[row].removesuffix(" again") for row in decided(first, at=7).rows)
    }


def counted(texts: list[str], monkeypatch: pytest.MonkeyPatch, threshold: float = 0.8) -> tuple[int, Decision]:
    """The number of compared pairs, and what is decided."""
    work = Counter[str]()
    compare = decision.NgramSets.similarities

    def noted(sets: Any, one: Any, other: Any) -> Any:
        work["pairs"] += len(one)
        return compare(sets, one, other)

    with monkeypatch.context() as patch:
        patch.setattr(decision.NgramSets, "similarities", noted)
        found = decided(texts, threshold)
    return work["pairs"], found


def templated(count: int, templates: int, words: tuple[int, int] = (9, 9)) -> list[str]:
    """Rows of templates, about 0.78 similar to the others of theirs."""
    drawn = random.Random(count)
    parts = [[f"t{number}w{at}" for at in range(88)] for number in range(templates)]
    found = []
    for _ in range(count):
        part, middle = drawn.choice(parts), drawn.choices(WORDS, k=drawn.randint(*words))
        found.append(" ".join([*part[:44], *middle, *part[44:]]))
    return found


def slotted(count: int, between: int) -> list[str]:
    """Rows of two templates with three slots of 12 values each."""
    drawn = random.Random(count)
    found = []
    for _ in range(count):
        name = drawn.choice("ab")
        slots = [f"s{drawn.randrange(12)}" for _ in range(3)]
        parts = (" ".join(f"{name}{number}w{at}" for at in range(between)) for number in range(4))
        found.append(" ".join(f"{part} {slot}" for part, slot in zip(parts, [*slots, "."], strict=True)))
    return found


SETS: dict[str, Any] = {
    "one template": lambda count: templated(count, 1),
    "five templates": lambda count: templated(count, 5),
    "answers of any length": lambda count: templated(count, 3, (4, 15)),
    "three slots, one of which may differ": lambda count: slotted(count, 10),
    "three slots, two of which may differ": lambda count: slotted(count, 18),
}


@pytest.mark.parametrize("name", SETS)
def test_templated_rows_take_work_in_proportion_to_their_number(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (500, 2000):
        work, found = counted(SETS[name](count), monkeypatch)
        assert work < 40 * count
        assert found.limited == 0


@pytest.mark.parametrize("name", some(SETS, 2))
def test_templated_rows_are_dropped_as_by_a_loop(name: str) -> None:
    """All similar rows that share a bucket are found, and of the others, hardly any is missed."""
    texts = SETS[name](400)
    sets = [{*zip(*(text.split()[at:] for at in range(5)), strict=False)} for text in texts]
    times = Counter(gram for grams in sets for gram in grams)
    common = {gram for gram, count in times.items() if count >= 0.9 * len(texts)} if name == "one template" else set()
    seen, kept, lost = set[str](), list[set[Any]](), set[int]()
    for row, (text, grams) in enumerate(zip(texts, sets, strict=True)):
        own = grams - common
        similar = [len(own & other) / len(own | other) for other in kept]
        if text in seen or max(similar, default=0) >= 0.8:
            lost.add(row)
        else:
            kept.append(own)
        seen.add(text)
    found = {*decided(texts).rows.tolist()}
    assert len(found ^ lost) <= 0.01 * len(texts)


def test_rows_with_too_many_to_compare_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenloom.assets.dedup.candidates.MOST", 3)
    work, found = counted(SETS["three slots, one of which may differ"](600), monkeypatch)
    assert found.limited > 0
    assert work < 600 * (18 + 3)
