"""No sequence has a trained stop that its row does not have there; counters of answers equal those of a plain loop.

The loop sees the spans of the tokens stage and the sequences. Every token id is replaced by its own number, so that a
sequence shows which tokens of the row it has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.soak import SOAK, sweep
from tokenloom.assets.building.build import Build
from tokenloom.assets.prompts.spans import SPAN_ROLES, SPANS
from tokenloom.assets.sequences.answers import unstopped_warning
from tokenloom.assets.sequences.stage import sequencer
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.tables.ragged import sides

STRATEGIES = ("smart", "truncate_right", "truncate_left", "truncate_middle", "split", "drop")
PARTS = ("reasoning", "tool_call")
COUNTERS = ("answers", "answers_cut", "answers_without_stop", "prompts_emptied")

Spans = list[dict[str, Any]]


def numbered(table: pa.Table) -> pa.Table:
    """Replace the ids by the numbers of the tokens; in pairs, by those of each side."""
    for name in [name for name in table.column_names if name.endswith("input_ids")]:
        ids, at = [], 0
        for row in table[name].to_pylist():
            ids.append(list(range(at, at + len(row))))
            at += len(row)
        table = table.set_column(table.column_names.index(name), name, pa.array(ids, pa.list_(pa.uint32())))
    return table


def answers_of(spans: Spans) -> list[tuple[list[int], list[int], list[int]]]:
    """Return the tokens of each answer's question, of the answer, and of its stop."""
    found: list[tuple[Spans, Spans]] = []
    asked: Spans = []
    previous: dict[str, Any] | None = None
    for span in spans:
        if span["weight"] == 0:
            if SPAN_ROLES[span["role"]] in ("user", "input") and span["message"] >= 0 and not span["control"]:
                asked.append(span)
        else:
            message = max((part["message"] for part in found[-1][1]), default=-1) if previous else -1
            if previous is None or (span["message"] >= 0 <= message and span["message"] != message):
                found.append((asked, []))
                asked = []
            found[-1][1].append(span)
        previous = span if span["weight"] else None
    return [(tokens_of(question_of(before)), tokens_of(parts), tokens_of(stop_of(parts))) for before, parts in found]


def question_of(asked: Spans) -> Spans:
    users = [span for span in asked if SPAN_ROLES[span["role"]] == "user"]
    return [span for span in users if span["message"] == users[-1]["message"]] or asked


def stop_of(parts: Spans) -> Spans:
    """Return the control tokens at the end, with the short texts before them; else the text after the first span."""
    if not parts[-1]["control"]:
        return parts[-1:] if len(parts) > 1 and not is_content(parts, len(parts) - 1) else []
    at = len(parts)
    while at and (parts[at - 1]["control"] or (at > 1 and at < len(parts) and is_glue(parts, at - 1))):
        at -= 1
    return parts[at:]


def is_glue(parts: Spans, at: int) -> bool:
    short = parts[at]["end"] - parts[at]["start"] <= 2
    return short and parts[at + 1]["control"] and not is_content(parts, at)


def is_content(parts: Spans, at: int) -> bool:
    """Whether a span is reasoning, the text after it, or a tool call."""
    before, role = (SPAN_ROLES[span["role"]] for span in (parts[at - 1], parts[at]))
    return role in PARTS or (at > 0 and before == "reasoning")


def tokens_of(spans: Spans) -> list[int]:
    return [token for span in spans for token in range(span["start"], span["end"])]


def counted(tokens: pa.Table, out: ChunkOutput) -> Counter[str]:
    """Count answers by a loop over rows, and check their stops; in pairs, of both sides."""
    found, given = sides(out.table), sides(tokens)
    return sum((_counted(given[side], found[side]) for side in given), Counter())


def _counted(tokens: pa.Table, sequences: pa.Table) -> Counter[str]:
    counts: Counter[str] = Counter()
    documents: dict[int, list[tuple[list[int], list[int]]]] = {}
    for sequence in sequences.to_pylist():
        at = 0
        for row, size in zip(sequence["rows"], sequence["document_lengths"], strict=True):
            pieces = sequence["input_ids"][at : at + size], sequence["trained"][at : at + size]
            documents.setdefault(row, []).append(pieces)
            at += size
    for row in tokens.to_pylist():
        if row[ROW] in documents:
            first = row["input_ids"][0]
            pieces = [([token - first for token in ids], flags) for ids, flags in documents[row[ROW]]]
            counts += count_row(answers_of(row["spans"]), pieces)
            check_stops(answers_of(row["spans"]), pieces)
    return counts


def counters_of(out: ChunkOutput) -> Counter[str]:
    return Counter({name: out.counters[name] for name in COUNTERS})


def count_row(answers: Any, pieces: list[tuple[list[int], list[int]]]) -> Counter[str]:
    present = {token for ids, _ in pieces for token in ids}
    trained = {token for ids, flags in pieces for token, flag in zip(ids, flags, strict=True) if flag}
    counts: Counter[str] = Counter()
    for question, answer, stop in answers:
        left = trained.intersection(answer)
        counts["answers_cut"] += len(left) < len(answer)
        if left:
            counts["answers"] += 1
            counts["answers_without_stop"] += not trained.issuperset(stop)
            counts["prompts_emptied"] += bool(question) and not present.intersection(question)
    return counts


def check_stops(answers: Any, pieces: list[tuple[list[int], list[int]]]) -> None:
    """Check that each trained stop token follows the token that it follows in its row."""
    stops = {token for _, _, stop in answers for token in stop}
    for ids, flags in pieces:
        for place, (token, flag) in enumerate(zip(ids, flags, strict=True)):
            if flag and token in stops and place:
                assert ids[place - 1] == token - 1


def made(tokens: pa.Table, form: str, longest: int, prompt: Any = None, **length: Any) -> ChunkOutput:
    sections = {"dataset": {"name": "x"}, "tokenizer": {"max_length": longest}, "length": length}
    config = PipelineConfig.from_mapping({**sections, "prompt_template": prompt or {}})
    return sequencer(config, {"form": form})(tokens)


sizes = st.integers(0, 9)
TURN = st.tuples(sizes, sizes, st.integers(0, 3), st.booleans(), st.booleans(), st.integers(0, 3), sizes, sizes)
TALKS = st.lists(st.tuples(sizes, st.lists(TURN, min_size=1, max_size=4)), min_size=1, max_size=5)


def talks_table(talks: list[Any]) -> pa.Table:
    """Return conversations in tokens: headers, questions, answers in parts, and stops of control tokens or text."""
    rows = []
    for system, turns in talks:
        parts: list[tuple[str, int, float, bool, int]] = [("system", 0, 0.0, False, system)]
        for index, (question, answer, stop, trained, control, glue, thought, call) in enumerate(turns):
            message, weight = 2 * index + 1, float(trained)
            parts += [("template", -1, 0.0, True, 1), ("user", message, 0.0, False, question)]
            parts += [("template", -1, 0.0, True, 1), ("reasoning", message + 1, weight, False, thought * trained)]
            parts += [("assistant", message + 1, weight, False, answer + 1)]
            parts += [("tool_call", message + 1, weight, False, call * trained)]
            parts.append(("assistant", message + 1, weight, control, stop))
            parts += [("assistant", message + 1, weight, False, glue), ("assistant", -1, weight, True, bool(glue))]
        spans, at = [], 0
        for role, message, weight, control, size in parts:
            if size:
                span = {"start": at, "end": at + size, "role": SPAN_ROLES.index(role), "message": message}
                spans.append({**span, "weight": weight, "control": control})
                at += size
        rows.append(spans)
    ids = [list(range(row[-1]["end"])) for row in rows]
    columns = {ROW: pa.array(range(len(rows)), pa.int32()), "input_ids": pa.array(ids, pa.list_(pa.uint16()))}
    return numbered(pa.table({**columns, "spans": pa.array(rows, SPANS)}))


@given(
    TALKS,
    st.integers(1, 60),
    st.sampled_from(STRATEGIES),
    st.sampled_from(["none", "concat", "best_fit"]),
    st.sampled_from(["start", "end"]),
    st.integers(0, 3),
)
def test_counters_equal_those_of_a_loop(
    talks: list[Any], longest: int, strategy: str, packing: str, keep: str, stride: int
) -> None:
    tokens = talks_table(talks)
    more = {"stride": min(stride, longest - 1)} if strategy == "split" and packing != "concat" else {}
    out = made(tokens, "messages", longest, strategy=strategy, packing=packing, keep=keep, **more)
    assert counters_of(out) == counted(tokens, out)
    roles, turns = trained_tokens(tokens, out)
    found = {name: count for name, count in out.counters.items() if name.startswith("trained_tokens.")}
    assert found == {f"trained_tokens.{name}": count for name, count in (roles + turns).items()}
    roles -= Counter({part: roles[part] for part in PARTS})
    assert roles.total() == turns.total() == out.counters["tokens_trained"]
    if strategy == "smart" and packing != "concat":
        assert out.counters["prompts_emptied"] == 0


def trained_tokens(tokens: pa.Table, out: ChunkOutput) -> tuple[Counter[str], Counter[str]]:
    """Count trained tokens by role and part, and by turn: the number of messages of users so far."""
    kinds: dict[int, tuple[str, int]] = {}
    for row in tokens.to_pylist():
        asked = 0
        for span in row["spans"]:
            role = SPAN_ROLES[span["role"]]
            asked += role == "user"
            for token in tokens_of([span]):
                kinds[row["input_ids"][token]] = role, max(asked, 1)
    roles: Counter[str] = Counter()
    turns: Counter[str] = Counter()
    for sequence in out.table.to_pylist():
        for token, flag in zip(sequence["input_ids"], sequence["trained"], strict=True):
            if flag:
                role, turn = kinds[token]
                roles.update([role, "assistant"] if role in PARTS else [role])
                turns[f"turn_{turn}" if turn < 10 else "turn_10_and_later"] += 1
    return roles, turns


def test_a_cut_user_message_that_is_trained_has_no_trained_stop() -> None:
    """With train_on: all, the stop of a shortened question would follow a token that it does not follow in the row."""
    spans = [("user", 0, False, 30), ("user", 0, True, 1), ("assistant", 1, False, 5), ("assistant", 1, True, 1)]
    row, at = [], 0
    for role, message, control, size in spans:
        span = {"start": at, "end": at + size, "role": SPAN_ROLES.index(role), "message": message, "weight": 1.0}
        row.append({**span, "control": control})
        at += size
    tokens = pa.table(
        {
            ROW: pa.array([0], pa.int32()),
            "input_ids": pa.array([range(at)], pa.list_(pa.uint16())),
            "spans": pa.array([row], SPANS),
        }
    )
    for keep, trained in (("start", [1] * 13 + [0] + [1] * 6), ("end", [1] * 20)):
        out = made(tokens, "messages", 20, {"train_on": "all"}, strategy="smart", keep=keep)
        assert out.table["trained"].to_pylist() == [trained]


def test_text_is_split_by_default_and_its_stop_is_only_at_its_end() -> None:
    spans = [("text", 0, False, 10), ("text", -1, True, 1)]
    row = [
        {
            "start": 10 * index,
            "end": 10 * index + size,
            "role": SPAN_ROLES.index(role),
            "message": message,
            "weight": 1.0,
        }
        | {"control": control}
        for index, (role, message, control, size) in enumerate(spans)
    ]
    columns = {ROW: pa.array([0], pa.int32()), "input_ids": pa.array([range(11)], pa.list_(pa.uint16()))}
    out = made(pa.table({**columns, "spans": pa.array([row], SPANS)}), "text", 4)
    assert out.table["input_ids"].to_pylist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert [out.counters[name] for name in COUNTERS] == [1, 0, 0, 0]


def test_a_warning_names_the_fraction_and_the_remedy() -> None:
    config = PipelineConfig.from_mapping({"dataset": {"name": "x"}, "tokenizer": {"max_length": 64}})
    assert unstopped_warning(config, {"answers": 1000, "answers_without_stop": 10}) is None
    message = unstopped_warning(config, {"answers": 1000, "answers_without_stop": 11}) or ""
    assert "11 of 1,000 answers (1.10%, above validation.max_unstopped_fraction 1.00%)" in message
    assert "raise tokenizer.max_length" in message


PHI = {"name_or_path": "tokenizers/phi-2"}
QWEN = {**PHI, "chat_template": "chat_templates/qwen2.5-instruct.jinja"}
ZEPHYR = {**PHI, "chat_template": "chat_templates/zephyr.jinja"}
PLAIN = {"format_type": "text"}
DPO = {"format_type": "preference"}

REAL: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "glaive": ("chat/glaive_toolcall_en_demo.json", QWEN, {}),
    "dummy": ("chat/dummy_conversation.json", QWEN, {}),
    "dummy zephyr": ("chat/dummy_conversation.json", ZEPHYR, {}),
    "toy": ("chat/toy_chat_fine_tuning.jsonl", QWEN, {}),
    "barelist": ("chat/openai_sft_barelist.jsonl", ZEPHYR, {}),
    "dpo": ("preference/v1_dpo_demo.jsonl", QWEN, DPO),
    "hh-rlhf": ("preference/hh-rlhf_harmless-base_test.jsonl.gz", ZEPHYR, {"format_type": "preference"}),
    "wikitext train": ("text/wikitext-2/train.txt.gz", PHI, PLAIN),
    "wikitext valid": ("text/wikitext-2/valid.txt", PHI, PLAIN),
    "wikitext test": ("text/wikitext-2/test.txt", PHI, PLAIN),
}


def token_chunks(folder: Path, data: Path, file: str, tokenizer: Any, prompt: Any) -> Iterator[tuple[pa.Table, Any]]:
    """Build a file up to its tokens; yield the chunks, numbered, and the column mapping."""
    named = {name: str(data / path) for name, path in tokenizer.items()}
    sections = {"dataset": {"name": str(data / file)}, "tokenizer": named, "prompt_template": prompt}
    config = PipelineConfig.from_mapping({**sections, "name": "x", "validation": {"max_reject_fraction": 1.0}})
    build = Build(config, ArtifactStore(folder / "store"))
    list(build.run_all("tokens"))
    for chunk in build.manifest("tokens").chunks:
        yield numbered(build.store.objects.get(chunk.output)), build.manifest("columns").facts["mapping"]


@sweep
@pytest.mark.parametrize("name", REAL)
def test_counters_of_real_files_equal_those_of_a_loop(name: str, real_data: Path, tmp_path: Path) -> None:
    rows = 0
    for chunk, mapping in token_chunks(tmp_path, real_data, *REAL[name]):
        tokens = chunk if SOAK else chunk.slice(0, 300)  # the loop is slow
        rows += tokens.num_rows
        for longest in (256, 512, 2048):
            for strategy in (None, "truncate_left"):
                sections = {"tokenizer": {"max_length": longest}, "length": {"strategy": strategy}}
                config = PipelineConfig.from_mapping({"dataset": {"name": "x"}, **sections})
                out = sequencer(config, mapping)(tokens)
                assert counters_of(out) == counted(tokens, out), (longest, strategy)
    assert rows


def test_every_shared_chat_and_text_file_is_compared(real_data: Path) -> None:
    lines = (real_data / "MANIFEST.md").read_text(encoding="utf-8").splitlines()
    listed = {line.split("|")[1].strip() for line in lines if line.startswith(("| chat/", "| preference/", "| text/"))}
    assert listed == {file for file, *_ in REAL.values()}


def test_a_build_prints_and_reports_the_counters(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = [{"prompt": "what is it? " * 40, "completion": "a long answer " * (number % 40 + 1)} for number in range(50)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sections = {"dataset": {"name": str(tmp_path / "rows.jsonl")}, "name": "x"}
    tokenizer = {"name_or_path": str(tokenizer_folder), "max_length": 64}
    build = Build(PipelineConfig.from_mapping({**sections, "tokenizer": tokenizer}), ArtifactStore(tmp_path / "store"))
    counters = list(build.run_all())[-1].counters
    assert counters["answers"] == 50
    assert 0 < counters["answers_without_stop"] == counters["answers_cut"] < 50
    assert counters["trained_tokens.answer"] == counters["tokens_trained"]
