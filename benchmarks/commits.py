"""Compare two checkouts of tokenloom: whole processes in turn, old, new, new, old, and so on, in this environment.

usage: commits.py OLD NEW [--jobs NAME ...] [--pairs N] [--rows N] [--folder DIR]

OLD and NEW are folders that hold a checkout. Each builds its own stores, for formats may differ. Prints, for each job,
the median of the ratios new/old and the second lowest and second highest of them, which for 9 pairs bound the median
with 96% confidence (order statistics of a binomial distribution); for wall time and for CPU time. Jobs:

- cold: a cold build of `--rows` rows of Alpaca, or of the quickstart;
- unchanged: a build of the same rows with nothing to do;
- rendering: a cold build, up to prompts, of `--rows` / 4 chats of four messages under ChatML;
- calls: the same of `--rows` / 4 chats with tool calls and reasoning under Qwen3's template, see called.py;
- near: a cold build, up to dedup, of `--rows` / 4 rows: half are of ten templates, a little less similar than the
  threshold; of the others, one in eight nearly repeats another;
- ragged, packed, full: 4,000 batches of 8 rows, padded to the longest; packed, best fit; and 8 × 2,048;
- resume: open, load a state in a late epoch, read one batch;
- stream, stream-rows: an epoch of 4,000 rows, encoded as they are read: from a YAML with `streaming: true`, in padded
  batches of 8; and of a `StreamingPreprocessedDataset`, row by row.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import yaml

CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
CHAT += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
BUILDS: dict[str, tuple[str, list[str]]] = {
    "cold": ("rows", []),
    "unchanged": ("rows", []),
    "rendering": ("chats", ["--stage", "prompts"]),
    "calls": ("called", ["--stage", "prompts"]),
    "near": ("near", ["--stage", "dedup"]),
}
LOADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ragged": ("rows", {"padding": "longest"}),
    "packed": ("packed", {}),
    "full": ("full", {}),
    "resume": ("rows", {"padding": "longest"}),
}
STREAMS = ("stream", "stream-rows")
# A column of 8 x 2,048 int64 is as large as glibc's threshold for giving memory back to the system. Whether each batch
# does so depends on what else lies in the heap, and makes the same code up to 8% slower.
KEPT_MEMORY = {f"MALLOC_{name}_": "100000000" for name in ("MMAP_THRESHOLD", "TRIM_THRESHOLD", "TOP_PAD")}
TEXT = {
    "dataset": {"name": "rows.jsonl", "column_mapping": {"text": "output"}},
    "prompt_template": {"format_type": "text"},
}
DATASETS: dict[str, dict[str, Any]] = {
    "rows": {},
    "chats": {"prompt_template": {"format_type": "chat"}},
    "called": {"prompt_template": {"format_type": "chat"}},
    "near": {"dataset": {"name": "near.jsonl"}, "dedup": {}},
    "packed": {**TEXT, "length": {"packing": "best_fit"}},
    "full": {**TEXT, "length": {"packing": "concat"}},
    "stream": {},
}


def write(folder: Path, count: int) -> None:
    """Write the rows, the chats, and a YAML for each dataset."""
    from alpaca import source, write_rows
    from build import TEMPLATE
    from called import template, write_called

    rows, tokenizer = source(folder)
    write_rows(folder / "rows.jsonl", rows, count)
    write_rows(folder / "stream.jsonl", rows, 4000)
    write_called(folder / "called.jsonl", rows, count // 4)
    write_near(folder / "near.jsonl", rows, count // 4)
    templates = {"chats": CHAT, "called": template()}
    with (folder / "chats.jsonl").open("w", encoding="utf-8") as file:
        for number in range(count // 4):
            first, second = (rows[(2 * number + step) % len(rows)] for step in range(2))
            question = f"{number}. {first['instruction']} {first['input']}".strip()
            contents = [question, first["output"], f"{second['instruction']} {second['input']}".strip()]
            turns = zip(("user", "assistant") * 2, [*contents, second["output"]], strict=True)
            messages = [{"role": role, "content": content} for role, content in turns]
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    custom = {"format_type": "custom", "template": TEMPLATE, "label_column": "output"}
    for name, own in DATASETS.items():
        settings: dict[str, Any] = {
            "name": name,
            "dataset": {"name": f"{name}.jsonl" if name in templates or name == "stream" else "rows.jsonl"},
            "tokenizer": {"name_or_path": tokenizer, "max_length": 2048},
            "prompt_template": custom,
        }
        if name in templates:
            settings["tokenizer"]["chat_template"] = templates[name]
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings | own), encoding="utf-8")


def write_near(path: Path, rows: list[dict[str, str]], count: int) -> None:
    """Write rows of ten templates, with nine words of their own, and others, some of which nearly repeat one."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            row, part = rows[number % len(rows)], number // 2 % 10
            if number % 2:
                halves = (" ".join(f"t{part}w{word}" for word in range(start, start + 44)) for start in (0, 44))
                own = " ".join(f"{number * 9 + word:x}" for word in range(9))
                row = {"instruction": f" {own} ".join(halves), "input": "", "output": "Yes."}
            elif number % 16 == 8:
                row = rows[(number - 8) % len(rows)] | {"input": f"{number}"}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def child(checkout: Path, arguments: list[str]) -> tuple[float, float]:
    """Run Python with the tokenloom of a checkout. Return seconds of wall time and of CPU time.

    Raises:
        SystemExit: the process failed.
    """
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or every process compiles all that it imports
    # Python looks for modules in the working directory first.
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=checkout)
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{checkout}: {' '.join(arguments)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def build(checkout: Path, folder: Path, job: str, store: Path) -> tuple[float, float]:
    name, options = BUILDS.get(job, (job, []))
    command = ["-c", "from tokenloom.cli import main; raise SystemExit(main())", "build"]
    return child(checkout, [*command, str(folder / f"{name}.yaml"), "--store", str(store), *options])


def load(job: str, store: str) -> None:
    """Print the seconds, of wall time and of CPU time, of the fastest of several readings, or of the median resume.

    Args:
        store: the folder of the store; for streams, any folder.
    """
    from tokenloom.loaders import TokenLoader, open_dataset

    name, options = LOADERS.get(job, (job, {}))
    times: list[tuple[float, float]] = []

    def timed(run: Callable[[], object]) -> None:
        started, cpu = time.perf_counter(), time.process_time()
        run()
        times.append((time.perf_counter() - started, time.process_time() - cpu))

    def first_batch() -> None:
        dataset = open_dataset(name, store=store)
        loader = TokenLoader(dataset, 8, **options)
        loader.load_state_dict({**loader.state_dict(), "epoch": 3, "position": len(dataset) // 3})
        next(iter(loader))

    def read() -> None:
        for _ in islice(batches, 500 if job == "stream" else 4000):
            pass

    if job == "resume":
        for _ in range(60):
            timed(first_batch)
        print(json.dumps([statistics.median(column) for column in zip(*times, strict=True)]))
        return
    loader = stream(job, store) if job in STREAMS else TokenLoader(open_dataset(name, store=store), 8, **options)
    batches = chain.from_iterable(repeat(loader))
    for _ in range(6):
        timed(read)
    print(json.dumps([min(column) for column in zip(*times[1:], strict=True)]))


def stream(job: str, store: str) -> Any:
    """Return a stream of 4,000 rows: a loader of batches, or a dataset."""
    from pyarrow.json import read_json

    from tokenloom import DataPipeline
    from tokenloom.loaders import create_preprocessed_dataset

    settings = yaml.safe_load((Path(store).parent / "stream.yaml").read_text(encoding="utf-8"))
    settings["dataset"] |= {"streaming": job == "stream", "name": str(Path(store).parent / "stream.jsonl")}
    settings["dataloader"] = {"batch_size": 8}
    pipeline = DataPipeline.from_config(settings, store=store).unwrap()
    if job == "stream":
        return pipeline.get_dataloader().unwrap()
    rows = read_json(settings["dataset"]["name"])
    return create_preprocessed_dataset(rows, pipeline.get_prompt_engine().unwrap(), streaming=True)


def measured(checkout: Path, folder: Path, job: str) -> tuple[float, float]:
    """Return the seconds of one run of a job, of wall time and of CPU time."""
    if job == "unchanged":
        return build(checkout, folder, job, store_of(checkout, folder))
    if job in BUILDS:
        with tempfile.TemporaryDirectory(dir=folder) as store:
            return build(checkout, folder, job, Path(store))
    environment = {**os.environ, **KEPT_MEMORY, "PYTHONPATH": str(checkout)}
    command = [sys.executable, __file__, "--load", job, str(store_of(checkout, folder))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{checkout}: {job}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def store_of(checkout: Path, folder: Path) -> Path:
    return folder / f"store-{str(checkout.resolve()).strip('/').replace('/', '-')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    jobs = [*BUILDS, *LOADERS, *STREAMS]
    parser.add_argument("checkouts", nargs=2, type=Path, metavar="OLD NEW")
    parser.add_argument("--jobs", nargs="+", choices=jobs, default=jobs, metavar="NAME")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--rows", type=int, default=520_020)
    parser.add_argument("--folder", type=Path, help="keeps the data and the built stores; default: a temporary folder")
    options = parser.parse_args()
    if options.pairs < 3:
        parser.error("--pairs must be at least 3")
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "full.yaml").exists():
            write(folder, options.rows)
        for checkout in options.checkouts:
            store = store_of(checkout, folder)
            shutil.rmtree(store, ignore_errors=True)
            for name in {(LOADERS | BUILDS)[job][0] for job in options.jobs if job in {*LOADERS, "unchanged"}}:
                build(checkout, folder, name, store)
        for job in options.jobs:
            ratios = []
            for number in range(options.pairs):
                turns = options.checkouts if number % 2 == 0 else options.checkouts[::-1]
                taken = {checkout: measured(checkout, folder, job) for checkout in turns}
                old, new = (taken[checkout] for checkout in options.checkouts)
                ratios.append((new[0] / old[0], new[1] / old[1]))
            columns = [sorted(column) for column in zip(*ratios, strict=True)]
            shown = [f"{statistics.median(c):.3f} ({c[1]:.3f} to {c[-2]:.3f})" for c in columns]
            print(f"{job:11} new/old, {options.pairs} pairs: wall time {shown[0]}, CPU time {shown[1]}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--load"]:
        load(*sys.argv[2:])
    else:
        main()
