"""Time a cold build, a build in which nothing changed, and the `datasets.map` idiom, as whole processes in turn.

usage: build.py [--rows N] [--runs N] [--alone]

Rows are those of Alpaca, repeated and made distinct, with phi-2's tokenizer, if $TOKENLOOM_REAL_DATA is set; else those
of the quickstart, with the tokenizer trained on it. Prints medians, peak memory, and ratios within the run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from alpaca import source, write_rows

from tokenloom.resources.engines.engine import cpu_count

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
TEMPLATE = "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n{output}\n"


def write(folder: Path, count: int) -> tuple[Path, Path, str]:
    """Write distinct rows as JSONL and a YAML for them. Return both paths and the tokenizer's folder."""
    rows, tokenizer = source(folder)
    data, config = folder / "rows.jsonl", folder / "rows.yaml"
    write_rows(data, rows, count)
    settings = {
        "dataset": {"name": data.name},
        "tokenizer": {"name_or_path": tokenizer, "max_length": 2048},
        "prompt_template": {"format_type": "custom", "template": TEMPLATE, "label_column": "output"},
    }
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return data, config, tokenizer


def timed(command: list[str]) -> tuple[float, int]:
    """Run a command. Return its seconds and peak resident memory in MB (of its largest child, if it has any)."""
    started = time.perf_counter()
    null = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=null, stderr=null, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}: exit {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - started, usage.ru_maxrss // 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=52_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="do not run datasets.map")
    options = parser.parse_args()
    measured: dict[str, list[tuple[float, int]]] = {
        what: [] for what in ("cold", "unchanged", "datasets.map")[: 2 if options.alone else 3]
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, config, tokenizer = write(folder, options.rows)
        store, out = str(folder / "store"), str(folder / "out")
        build = [str(BIN / "tokenloom"), "build", str(config), "--store", store]
        peer = [sys.executable, str(ROOT / "benchmarks" / "datasets_map.py"), str(data), tokenizer, out, "2"]
        for _ in range(options.runs):
            shutil.rmtree(store, ignore_errors=True)
            shutil.rmtree(out, ignore_errors=True)
            measured["cold"].append(timed(build))
            measured["unchanged"].append(timed(build))
            if not options.alone:
                measured["datasets.map"].append(timed(peer))
    median = {what: statistics.median(seconds for seconds, _ in runs) for what, runs in measured.items()}
    print(f"{options.rows:,} rows, {options.runs} runs, {cpu_count()} cores; whole processes, medians")
    last = [*median][-1]
    for what, runs in measured.items():
        head = f"{what:14} {median[what]:7.2f} s, {max(peak for _, peak in runs):5} MB"
        print(f"{head}   {median[last] / median[what]:6.1f} × as fast as {last}")


if __name__ == "__main__":
    main()
