"""Time the tokens stage against the library that tokenizes the text, and show where the rest of its time goes.

usage: tokens.py [--rows N] [--runs N] [--workers N]

Rows are those of Alpaca, repeated and made distinct, as chats, with phi-2's tokenizer, if $TOKENLOOM_REAL_DATA is set;
else those of the quickstart. The stage reads, checks, hashes, compresses and publishes. The library gets the same texts
in memory, as many threads, and is called in its fastest way. Prints medians, and ratios within the run.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import yaml
from alpaca import source, write_rows

from tokenloom.assets.building.build import Build
from tokenloom.assets.prompts.segments import segments
from tokenloom.assets.tokens.engines import Gigatoken, Reference
from tokenloom.config import PipelineConfig
from tokenloom.resources.engines.engine import ComputeEngine, cpu_count
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.tables.ragged import text_parts

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '<|user|>\n' + m['content'] + '\n' }}"
    "{% else %}{{ '<|assistant|>\n' }}{% generation %}{{ m['content'] + eos_token }}{% endgeneration %}"
    "{% endif %}{% endfor %}"
)
PARTS = {
    "reading and checking the chunk": ("objects.py", "get_verified"),
    "loading the tokenizers": ("stage.py", "_encoder"),
    "loading gigatoken and its certificate": ("encode.py", "load"),
    "cutting texts at control tokens": ("segments.py", "segments"),
    "gigatoken": ("engines.py", "ids"),
    "bytes of each token": ("vocabulary.py", "bytes_of"),
    "bytes of each text": ("vocabulary.py", "adds_up"),
    "code points": ("gigatoken.py", "_doubtful"),
    "the sample": ("gigatoken.py", "_sample_agrees"),
    "spans in tokens": ("encode.py", "count_span_tokens"),
    "the table of spans": ("stage.py", "_token_spans"),
    "validation": ("validation.py", "validate"),
    "compressing": ("objects.py", "encode_table"),
    "hashing": ("digest.py", "digest_bytes"),
    "publishing": ("folder.py", "create"),
}


def prepared(folder: Path, count: int) -> PipelineConfig:
    rows, tokenizer = source(folder)
    write_rows(folder / "rows.jsonl", rows, count)
    settings = {
        "dataset": {
            "name": "rows.jsonl",
            "column_mapping": {"prompt": "{instruction}\n\n{input}", "completion": "output"},
        },
        "tokenizer": {"name_or_path": tokenizer, "chat_template": TEMPLATE},
        "prompt_template": {"format_type": "chat"},
    }
    (folder / "rows.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return PipelineConfig.from_file(folder / "rows.yaml")


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Run a function. Return its wall time and the CPU time of all cores, in seconds."""
    clock, cores = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - clock, time.process_time() - cores


def library(content: str, chunks: list[pa.Array], workers: int) -> None:
    engine = Gigatoken(content)
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(engine.ids, chunks))


def forget(build: Build) -> None:
    """Remove the actions and outputs of the stage's last run, so that it runs again, and writes."""
    for chunk in build.manifest("tokens").chunks:
        build.store.actions.delete(chunk.key)
        build.store.objects.delete(chunk.output)


def parts_of(profile: cProfile.Profile) -> dict[str, float]:
    """Return the seconds of each part, and of the whole run."""
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    runs = {place[2]: row[3] for place, row in stats.items() if place[0].endswith("build.py") and place[2] == "run"}
    spent = {"all": runs["run"]}
    for part, (file, name) in PARTS.items():
        spent[part] = sum(row[3] for place, row in stats.items() if place[0].endswith(f"/{file}") and place[2] == name)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=520_020)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=cpu_count())
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-") as name:
        build = Build(
            prepared(Path(name), parsed.rows), ArtifactStore(Path(name) / "store"), ComputeEngine(parsed.workers)
        )
        list(build.run_all("tokenizer"))
        tables = [build.store.objects.get(chunk.output) for chunk in build.manifest("prompts").chunks]
        chunks = [segments(table).text for table in tables]
        megabytes = sum(text_parts(chunk)[0][-1] for chunk in chunks) / 1e6
        content = build.tokenizer.files["tokenizer.json"].decode()
        first, _ = timed(lambda: build.run("tokens"))
        runs: dict[str, list[tuple[float, float]]] = {"library": [], "stage": []}
        for _ in range(parsed.runs):
            runs["library"].append(timed(lambda: library(content, chunks, parsed.workers)))
            forget(build)
            runs["stage"].append(timed(lambda: build.run("tokens")))
        some = chunks[0].slice(0, 2000)
        slow, _ = timed(lambda: Reference(content, keep_control=True).ids(some))
        forget(build)
        build.engine = ComputeEngine(1)
        with cProfile.Profile(time.process_time) as profile:  # the libraries work in threads of their own
            build.run("tokens")
    clock, cores = (
        {what: statistics.median(run[side] for run in timings) for what, timings in runs.items()} for side in (0, 1)
    )
    print(
        f"{parsed.rows:,} rows, {megabytes:.0f} MB of text, {len(chunks)} chunks, {parsed.workers} workers on "
        f"{cpu_count()} cores, medians of {parsed.runs} runs"
    )
    print(f"tokenizers {text_parts(some)[0][-1] / 1e6 / slow:7.1f} MB/s")
    for what in runs:
        print(f"{what:10} {megabytes / clock[what]:7.1f} MB/s, {megabytes / cores[what]:7.1f} MB/s per core")
    print(
        f"stage / library: {clock['library'] / clock['stage']:.2f} by wall time, "
        f"{cores['library'] / cores['stage']:.2f} by CPU time; with a new certificate {clock['library'] / first:.2f}"
    )
    spent = parts_of(profile)
    whole = spent.pop("all")
    print(f"where the time of one worker goes, {whole:.2f} s under the profiler:")
    for part, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"  {part:40} {seconds / whole:6.1%}")
    print(f"  {'everything else':40} {1 - sum(spent.values()) / whole:6.1%}")


if __name__ == "__main__":
    main()
