"""Counters of the sequences stage: every token is accounted for, lengths before and after, packing efficiency."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.token_documents import documents_of, table_of
from tokenloom.assets.sequences.lengths import AFTER, BEFORE, Histogram, count_lengths, fill, histogram_png
from tokenloom.assets.sequences.stage import sequencer
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError

FLAGS = st.lists(st.lists(st.booleans(), min_size=1, max_size=60), min_size=1, max_size=10)


def made(table: pa.Table, longest: int, form: str, **length: Any) -> ChunkOutput:
    config = PipelineConfig.from_mapping(
        {"dataset": {"name": "x"}, "tokenizer": {"max_length": longest}, "length": length}
    )
    return sequencer(config, {"form": form})(table)


def lengths_of(table: pa.Table) -> list[int]:
    names = [name for name in table.column_names if name.endswith("input_ids")]
    return [len(ids) for name in names for ids in table[name].to_pylist()]


def balance(counters: dict[str, int]) -> int:
    """Return the number of input tokens that no counter accounts for."""
    gone = ("tokens_cut", "tokens_dropped", "tokens_rejected", "tokens_left_out")
    return counters["tokens_in"] + counters.get("tokens_repeated", 0) - sum(counters.get(name, 0) for name in gone)


STRATEGIES = ["truncate_right", "truncate_left", "truncate_middle", "smart", "split", "drop"]


@given(FLAGS, st.integers(1, 40), st.sampled_from(STRATEGIES), st.sampled_from(["none", "concat", "best_fit"]))
def test_every_token_is_accounted_for(flags: Any, longest: int, strategy: str, packing: str) -> None:
    table = table_of(documents_of(flags))
    out = made(table, longest, "text", strategy=strategy, packing=packing)
    assert balance(out.counters) == out.tokens == sum(lengths_of(out.table))
    assert out.counters["tokens_in"] == sum(lengths_of(table))
    check_histograms(table, out, longest)


@given(FLAGS, FLAGS, st.integers(1, 40), st.sampled_from([name for name in STRATEGIES if name != "split"]))
def test_every_token_of_pairs_is_accounted_for(one: Any, other: Any, longest: int, strategy: str) -> None:
    count = min(len(one), len(other))
    chosen, rejected = table_of(documents_of(one[:count])), table_of(documents_of(other[:count]))
    sides = {"chosen": chosen, "rejected": rejected}
    columns = {f"{side}_{name}": table[name] for side, table in sides.items() for name in ("input_ids", "spans")}
    table = pa.table({ROW: chosen[ROW], **columns})
    out = made(table, longest, "preference", strategy=strategy)
    assert balance(out.counters) == out.tokens == sum(lengths_of(out.table))
    assert out.counters["sequences"] == out.table.num_rows
    check_histograms(table, out, longest)


def check_histograms(table: pa.Table, out: ChunkOutput, longest: int) -> None:
    flags = [
        flag for name in out.table.column_names if name.endswith("trained") for flag in out.table[name].to_pylist()
    ]
    assert out.counters["tokens_trained"] == sum(map(sum, flags))
    for name, found in ((BEFORE, table), (AFTER, out.table)):
        lengths, low = lengths_of(found), 0
        histogram = Histogram.of(out.counters, name, longest)
        for bound, count in zip((*histogram.bounds, 10**9), histogram.counts, strict=True):
            assert count == sum(low < length <= bound for length in lengths)
            low = bound
        assert [bar == " " for bar in histogram.bars()] == [count == 0 for count in histogram.counts]
    held = lengths_of(out.table)
    assert fill(out.counters, out.tokens, longest) == (sum(held) / (longest * len(held)) if held else 0.0)


def test_the_picture_is_a_png_with_bars_as_tall_as_the_counts() -> None:
    table = pa.table({"input_ids": pa.array([[0] * n for n in (1, 5, 5, 100)], pa.list_(pa.uint16()))})
    found = Histogram.of(count_lengths(BEFORE, table, 16), BEFORE, 16)
    data = histogram_png(found, found)
    chunks, at = {}, 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size]) == (zlib.crc32(kind + body),)
        chunks[kind] = body
        at += 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    pixels = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert (data[:8], 280 <= width <= 320, (pixels[:, 0] == 0).all()) == (b"\x89PNG\r\n\x1a\n", True, True)
    tall = {int(column.sum()) for column in (pixels == 2).T}
    assert sorted(tall) == [0, 28, 57]  # the base line covers one row of each bar


@pytest.mark.parametrize("form", ["preference", "kto"])
@pytest.mark.parametrize("length", [{"strategy": "split"}, {"packing": "best_fit"}])
def test_answers_are_not_separated_from_their_prompts(form: str, length: dict[str, str]) -> None:
    (setting,) = length
    with pytest.raises(ConfigError, match=f"length.{setting}: .*{form}"):
        made(table_of([]), 8, form, **length)
