"""gigatoken and `tokenizers`: the same ids for any text, disputed characters, and recovery from a wrong engine."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, chain, pairwise, permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from support.builds import SMALL, build, digests
from support.datasets_on_disk import write_dataset
from support.real_texts import texts_of
from support.small_tokenizers import byte_level
from support.soak import SOAK, sweep
from support.tokenizer_kits import FAST, LINES, REAL, Kit, Piece, expected, kit_of, labels_of, made
from tokenloom.assets.building.build import Build
from tokenloom.assets.prompts.segments import Segments
from tokenloom.assets.tokens import engines, gigatoken
from tokenloom.assets.tokens.engines import BATCH_BYTES, Gigatoken, Ids, Reference
from tokenloom.assets.tokens.gigatoken import EngineCertificate, GigatokenEncoder, code_points, cyclic, refusal, unequal
from tokenloom.assets.tokens.stage import ENGINE
from tokenloom.assets.tokens.vocabulary import TokenBytes
from tokenloom.config import PipelineConfig
from tokenloom.errors import TokenizerError
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.actions import Certificate, CertificateStore, from_ranges, merge, to_ranges
from tokenloom.resources.store.blobs.folder import Folder
from tokenloom.resources.tables.ragged import Ints

LATE = "\ua7d2"
"""A letter of Unicode 17, unassigned before."""


def certificates(folder: Path) -> CertificateStore:
    return CertificateStore(Folder(folder))


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """Return a tokenizer that joins LATE with punctuation, because `tokenizers` does not know it as a letter."""
    folder = tmp_path_factory.mktemp("late")
    made("llama-3", [*LINES, *[f"{LATE}. {LATE}! {LATE}."] * 9]).save(str(folder / "tokenizer.json"))
    return kit_of(folder / "tokenizer.json", certificates(folder))


def ids_of(kit: Kit, texts: list[str]) -> list[list[int]]:
    return [kit.transformers.encode(text, add_special_tokens=False, split_special_tokens=True) for text in texts]


@pytest.mark.parametrize("fails", ["panic", "error"])
def test_errors_and_panics_of_tokenizers_name_the_file(fails: str) -> None:
    if fails == "panic":
        parsed = json.loads(byte_level().to_str())
        parsed["normalizer"] = {"type": "Replace", "pattern": {"Regex": ""}, "content": "xx"}
        content = json.dumps(parsed)
    else:
        content = Tokenizer(models.WordLevel({"a": 0}, unk_token="b")).to_str()
    reference = Reference(content, True)
    for tokenize in (reference.ids, reference.places):
        with pytest.raises(TokenizerError, match=r"^tokenizer\.json ") as raised:
            tokenize(pa.array(["some text"]))
        assert "\n" not in str(raised.value)


def test_the_engines_tokenize_a_late_letter_differently(late: Kit) -> None:
    texts = pa.array([f"so {LATE}. now", "so a. now"])
    content = late.content.decode()
    assert unequal(Gigatoken(content).ids(texts), Reference(content, True).ids(texts)).tolist() == [True, False]


SPOTS = st.sampled_from(
    [LATE, f" {LATE}.", "\x00", "\u0378", "\U000e0fff", "\U0010ffff", "</s>", "\r\n", "'ſ", "\ud7b0"]
)


@given(texts=st.lists(st.lists(st.one_of(SPOTS, st.text(max_size=6)), max_size=6).map("".join), min_size=1, max_size=4))
@example(texts=[f"so {LATE}. now", f"{LATE}{LATE}", f"a{LATE}!", "plain"])
def test_ids_equal_transformers_where_the_engines_differ(late: Kit, texts: list[str]) -> None:
    texts = [text for text in texts if text]
    out = late.run([[(text, True, False)] for text in texts])
    assert out.table["input_ids"].to_pylist() == ids_of(late, texts)
    assert out.engine or not texts


@pytest.mark.parametrize("name", [pytest.param(name, marks=sweep) if name in REAL else name for name in FAST])
def test_gigatoken_is_used_for_tokenizers_that_it_supports(name: str, tmp_path: Path, request: Any) -> None:
    file = tmp_path / "tokenizer.json"
    if name in REAL:
        file = request.getfixturevalue("real_data") / "tokenizers" / name / "tokenizer.json"
    else:
        made(name).save(str(file))
    kit = kit_of(file, certificates(tmp_path))
    assert kit.run([[("hello world", True, False)]]).engine


def changed(**changes: Any) -> dict[str, Any]:
    parsed = json.loads(made("bpe").to_str())
    for path, value in changes.items():
        *above, last = path.split("__")
        found = parsed
        for name in above:
            found = found[name]
        found[last] = value
    return parsed


@pytest.mark.parametrize(
    "changes",
    [
        {"model__dropout": 0.1},
        {"model__end_of_word_suffix": "</w>"},
        {"model__continuing_subword_prefix": "##"},
        {"pre_tokenizer__use_regex": False},
        {"pre_tokenizer__add_prefix_space": True},
        {"pre_tokenizer": None},
        {"model__merges": [["h", "e"], ["h", "e"]]},
        {"model__vocab__ ": 9999},  # the same bytes as those of Ġ
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}]}},
    ],
)
def test_tokenizers_with_options_that_gigatoken_ignores_are_refused(changes: dict[str, Any]) -> None:
    assert refusal(changed()) == ""
    assert refusal(changed(**changes))


@pytest.fixture(scope="module")
def digits_apart() -> dict[str, Any]:
    """Return a tokenizer whose pattern has `{1,3}+`: possessive in one engine, repeated in the other."""
    pattern = (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"
        r"|\s*[\r\n]|\s+(?!\S)|\s+"
    )
    parsed = json.loads(made("llama-3").to_str())
    parsed["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": pattern}
    return {**parsed, "added_tokens": []}


def test_characters_that_the_engines_split_differently(digits_apart: dict[str, Any], tmp_path: Path) -> None:
    found = EngineCertificate(digits_apart, "", certificates(tmp_path))
    digits = found.disputed(np.frombuffer(b"0123456789", np.uint8))
    assert digits.all() and not found.refused
    assert not found.disputed(np.frombuffer(b"abc XYZ.", np.uint8)).any()


def test_runs_that_the_engines_split_differently_refuse_the_tokenizer(
    digits_apart: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gigatoken, "NEIGHBOURS", "A.")
    monkeypatch.setattr(gigatoken, "CONTEXTS", ("{0}",))
    found = EngineCertificate(digits_apart, "", certificates(tmp_path))
    assert "runs" in found.refused
    assert EngineCertificate(digits_apart, "", certificates(tmp_path)).refused == found.refused


def test_tests_with_the_text_of_a_control_token_use_the_tokenizer_without_it(tmp_path: Path) -> None:
    def with_control() -> Any:
        raise AssertionError

    plain = {**json.loads(made("llama-3").to_str()), "added_tokens": []}
    found = EngineCertificate(plain, "", certificates(tmp_path), with_control, ["a"])
    assert not found.refused and not found.disputes_ascii
    with pytest.raises(AssertionError):
        EngineCertificate(plain, "other", certificates(tmp_path), with_control, ["<|end|>"])


def test_every_run_of_characters_occurs_in_a_cyclic_text() -> None:
    text = cyclic("abcd", 3)
    assert {"".join(run) for run in product("abcd", repeat=3)} == {text[at : at + 3] for at in range(len(text) - 2)}
    assert len(text) == 4**3 + 2


@given(text=st.text())
def test_code_points_beyond_ascii_are_read_from_bytes(text: str) -> None:
    data = text.encode()
    places, points = code_points(np.frombuffer(data, np.uint8))
    wanted = [(len(text[:at].encode()), ord(char)) for at, char in enumerate(text) if not char.isascii()]
    assert list(zip(places.tolist(), points.tolist(), strict=True)) == wanted


@given(
    one=st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=6),
    other=st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=6),
)
def test_unequal_lists_are_found(one: list[list[int]], other: list[list[int]]) -> None:
    count = min(len(one), len(other))

    def flat(lists: list[list[int]]) -> tuple[Ids, Ints]:
        counts = [len(found) for found in lists]
        return np.array([*chain.from_iterable(lists)], np.uint32), np.array([0, *np.cumsum(counts)], np.int64)

    assert unequal(flat(one[:count]), flat(other[:count])).tolist() == [
        first != second for first, second in zip(one[:count], other[:count], strict=True)
    ]


@given(lengths=st.lists(st.integers(0, 255), max_size=40), data=st.data())
def test_bytes_of_runs_of_tokens(lengths: list[int], data: st.DataObject) -> None:
    sums, found = [0, *accumulate(lengths)], TokenBytes(np.array(lengths, np.uint8))
    assert found.before(np.arange(len(sums))).tolist() == sums
    places = data.draw(st.lists(st.integers(0, sums[-1])))
    tokens, whole = found.reaching(np.array(places, np.int64))
    assert tokens.tolist() == [next(n for n, total in enumerate(sums) if total >= place) for place in places]
    assert whole.tolist() == [place in sums for place in places]


FACTS = st.builds(
    lambda agreed, disputed: Certificate(to_ranges(np.array(sorted(agreed))), to_ranges(np.array(sorted(disputed)))),
    st.sets(st.integers(0, 40)),
    st.sets(st.integers(0, 40)),
)


@given(found=st.lists(FACTS, min_size=1, max_size=3))
def test_certificates_merge_in_any_order_and_never_lose_a_dispute(found: list[Certificate]) -> None:
    merged = {merge([merge(list(order[:1])), *order[1:]]) for order in permutations(found)}
    assert len(merged) == 1
    only = merged.pop()
    disputed = {point for one in found for point in from_ranges(one.disputed).tolist()}
    agreed = {point for one in found for point in from_ranges(one.agreed).tolist()}
    assert set(from_ranges(only.disputed).tolist()) == disputed
    assert set(from_ranges(only.agreed).tolist()) == agreed - disputed


def test_findings_of_concurrent_builds_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = certificates(tmp_path), certificates(tmp_path)
    one.add("key", Certificate(agreed=((0, 9),)))
    seen = one._facts("key")
    other.add("key", Certificate(disputed=((5, 5),)))
    monkeypatch.setattr(one, "_facts", lambda key: seen)  # read before the other one wrote
    one.add("key", Certificate(agreed=((20, 29),)))
    assert other.read("key") == Certificate(((0, 4), (6, 9), (20, 29)), ((5, 5),))


def test_a_damaged_certificate_is_ignored(tmp_path: Path) -> None:
    store = certificates(tmp_path)
    store.add("key", Certificate(agreed=((0, 9),)))
    (path,) = (tmp_path / "certificates" / "key").iterdir()
    path.write_text('{"agreed": [[0')
    assert store.read("key") == Certificate()


def test_tokenizers_gets_bounded_batches(tmp_path: Path) -> None:
    reference = Reference(made("bpe").to_str(), True)
    texts = ["ab " * 1000] * (BATCH_BYTES // 2000) + ["", "x y" * (BATCH_BYTES // 2), ""]
    ids, offsets = reference.ids(pa.array(texts))
    alone = [reference.tokenizer.encode(text).ids for text in (texts[0], texts[-2])]
    assert np.diff(offsets).tolist() == [len(alone[0])] * (len(texts) - 3) + [0, len(alone[1]), 0]
    assert ids[: len(alone[0])].tolist() == alone[0]
    assert ids[offsets[-3] :].tolist() == alone[1]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_engine_and_workers_change_no_byte(tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_dataset(tmp_path)
    found = []
    for engine in ("tokenizers", "gigatoken"):
        monkeypatch.setenv(ENGINE, engine)
        found.append(digests(build(config, tmp_path / engine, workers)))
    assert found[0] == found[1]
    store = ArtifactStore(tmp_path / "gigatoken")
    keys = [chunk.key for chunk in store.manifest("small", "tokens").chunks]
    assert len(keys) > 1
    assert all(action and action.engine for action in map(store.find_action, keys))


@pytest.mark.parametrize("limit", [1 << 40, -(1 << 40)])
def test_threads_share_one_gigatoken_until_it_has_grown(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "CACHE_BYTES", limit)
    content, loads = made("bpe").to_str(), list[None]()
    load = Gigatoken._load  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(Gigatoken, "_load", lambda self: loads.append(None) or load(self))
    texts = [pa.array([f"text {number} of {size}" for number in range(size)]) for size in (0, 1, 5000, 300)] * 4
    shared, reference = Gigatoken(content), Reference(content, True)
    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(shared.ids, texts)]
    for (ids, offsets), each in zip(found, texts, strict=True):
        assert not unequal((ids, offsets), reference.ids(each)).any()
    assert len(loads) == 1 if limit > 0 else len(loads) > 1


class Wrong(Gigatoken):
    """Correct for its first chunk, then it reverses the ids of every text, so that the lengths still add up."""

    chunks = 0

    def ids(self, texts: pa.Array) -> tuple[Ids, Ints]:
        ids, offsets = super().ids(texts)
        if Wrong.chunks > 1:
            row = np.repeat(np.arange(len(texts)), np.diff(offsets))
            ids = ids[offsets[row] + offsets[row + 1] - 1 - np.arange(len(ids))]
        return ids, offsets


def test_a_wrong_sample_recomputes_everything_from_that_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_dataset(tmp_path)
    right = build(path, tmp_path / "right")
    monkeypatch.setenv(ENGINE, "gigatoken")
    monkeypatch.setattr(gigatoken, "Gigatoken", Wrong)
    encode = GigatokenEncoder.encode

    def counted(encoder: GigatokenEncoder, cut: Segments, control: Ids) -> Any:
        Wrong.chunks += 1
        return encode(encoder, cut, control)

    monkeypatch.setattr(GigatokenEncoder, "encode", counted)
    store, config = ArtifactStore(tmp_path / "store"), PipelineConfig.from_file(path)
    put, relied_on = store.put_action, []

    def recorded(*arguments: Any, **named: Any) -> Any:
        if "stored" in named:  # else it stores lengths, which no engine computes
            relied_on.append(arguments[-2])
        return put(*arguments, **named)

    monkeypatch.setattr(store, "put_action", recorded)
    made = Build(config, store, ComputeEngine(1), chunk_size=SMALL)
    reports = {report.name: report for report in made.run_all()}
    assert digests(reports) == digests(right)
    (engine,) = {engine for engine in relied_on if engine}
    assert store.certificates.is_void(engine)
    actions = [store.find_action(chunk.key) for chunk in store.manifest("small", "tokens").chunks]
    assert [action.engine for action in actions if action] == [""] * len(actions)
    again = {report.name: report for report in Build(config, store, chunk_size=SMALL).run_all()}
    assert again["tokens"].chunks_reused == again["tokens"].chunks
    assert digests(again) == digests(right)


@pytest.fixture(scope="module", params=REAL)
def real(request: pytest.FixtureRequest, real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Kit:
    store = certificates(tmp_path_factory.mktemp("real"))
    return kit_of(real_data / "tokenizers" / request.param / "tokenizer.json", store)


def rows_of(texts: list[str], draw: random.Random) -> list[list[Piece]]:
    """Return each text cut into up to three spans, some of them trained."""
    rows = []
    for text in texts:
        cuts = sorted({0, *draw.choices(range(len(text)), k=2), len(text)})
        rows.append([(text[a:b], draw.random() < 0.5, False) for a, b in pairwise(cuts)])
    return rows


def test_real_texts_are_tokenized_as_in_transformers(real: Kit, real_data: Path) -> None:
    """All rows in the soak, else some rows of each file."""
    draw = random.Random(3)
    for name, texts in texts_of(real_data).items():
        some = texts if SOAK else draw.sample(texts, min(150, len(texts)))
        rows = rows_of(some, draw)
        out = real.run(rows)
        found = out.table.to_pylist()
        assert bool(out.engine) == (real.transformers.vocab_size > 50_000)
        assert [row["input_ids"] for row in found] == ids_of(real, some), name
        wanted = [expected(real, pieces) for pieces in rows]
        assert [labels_of(row) for row in found] == [flags for _, flags, _ in wanted], name
        assert out.counters["straddles"] == sum(straddles for _, _, straddles in wanted), name
