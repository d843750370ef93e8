"""Compare the Ray engine with the local one on chunks so small that overhead dominates, and watch the driver's memory.

usage: engines.py [--chunks N] [--stage STAGE] [--runs N]

A Ray cluster of one node with as many CPUs as this machine listens on loopback. Each run is a process of its own that
builds the same rows into an empty store; engines alternate. Prints medians of the time per chunk, their ratio, and how
much the resident memory of the driver grew between the first fifth of the chunks and the last one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tokenloom.assets.building.build import Build
from tokenloom.assets.building.chain import STAGES
from tokenloom.assets.building.report import Progress
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.config import PipelineConfig
from tokenloom.config.schema import ComputeConfig
from tokenloom.resources.engines.engine import cpu_count, open_engine
from tokenloom.resources.store import ArtifactStore

SIZE = ChunkSize(target=1024, maximum=4096)
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu"]


def write(folder: Path, chunks: int) -> Path:
    """Write rows that make about so many chunks, and a YAML for them."""
    draw = random.Random(0)
    with (folder / "rows.jsonl").open("w") as file:
        for number in range(chunks * 9):
            row = {"prompt": f"{number} {' '.join(draw.choices(WORDS, k=6))}?", "completion": draw.choice(WORDS)}
            file.write(json.dumps(row) + "\n")
    (folder / "rows.yaml").write_text(
        "dataset: {name: rows.jsonl}\n"
        "tokenizer: {train: {vocab_size: 300}, special_tokens: {eos: <|end|>}, max_length: 128}\n"
        "prompt_template: {format_type: completion}\n"
    )
    return folder / "rows.yaml"


def run(config: Path, engine: str, address: str, stage: str) -> None:
    """Build once; prints chunks, seconds and the growth of resident memory as JSON."""
    resident: dict[int, int] = {}

    def on_progress(progress: Progress) -> None:
        if progress.stage == stage:
            resident[progress.chunks] = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
                "SC_PAGE_SIZE"
            )

    with tempfile.TemporaryDirectory() as store:
        compute = ComputeConfig.model_validate({"engine": engine, "address": address})
        opened = open_engine(compute)
        list(opened.map(abs, range(2 * opened.workers)))  # workers start before the clock does
        made = Build(PipelineConfig.from_file(config), ArtifactStore(store), opened, None, SIZE, on_progress)
        started = time.perf_counter()
        for _ in made.run_all(stage):
            pass
        seconds, chunks = time.perf_counter() - started, len(resident)
    growth = resident[chunks] - resident[max(chunks // 5, 1)]
    print(json.dumps({"chunks": chunks, "seconds": seconds, "growth": growth, "peak": max(resident.values())}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=2000, metavar="N")
    parser.add_argument("--stage", choices=STAGES, default="schema", help="the last stage of the chain")
    parser.add_argument("--runs", type=int, default=3, metavar="N")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        config, engine, address = args.child
        run(Path(config), engine, address, args.stage)
        return
    os.environ.update({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"})  # loopback only
    from ray.cluster_utils import Cluster

    head = {"num_cpus": cpu_count(), "node_ip_address": "127.0.0.1", "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    found: dict[str, list[dict[str, float]]] = {"local": [], "ray": []}
    with tempfile.TemporaryDirectory() as folder:
        config = write(Path(folder), args.chunks)
        for _ in range(args.runs):
            for engine, results in found.items():
                child = [sys.executable, __file__, "--stage", args.stage, "--child", str(config), engine]
                child.append(str(cluster.address))
                printed = subprocess.run(child, check=True, capture_output=True, text=True).stdout
                results.append(json.loads(printed.splitlines()[-1]))
    cluster.shutdown()
    times = {engine: [1e3 * each["seconds"] / each["chunks"] for each in results] for engine, results in found.items()}
    for engine, results in found.items():
        growth, peak = (statistics.median(each[name] for each in results) for name in ("growth", "peak"))
        chunks, took = results[0]["chunks"], statistics.median(times[engine])
        print(f"{engine:<6} {chunks:,.0f} chunks up to {args.stage}, {took:.2f} ms each")
        print(f"       the driver's memory grew by {growth / 1e6:.1f} MB from a fifth of the chunks to all of them,")
        print(f"       {growth / (chunks * 4 / 5):,.0f} bytes a chunk, and was at most {peak / 1e6:.0f} MB")
    ratios = [ray / local for local, ray in zip(times["local"], times["ray"], strict=True)]
    extra = [ray - local for local, ray in zip(times["local"], times["ray"], strict=True)]
    print(f"ray is {statistics.median(ratios):.2f} of local, {statistics.median(extra):.2f} ms more per chain")


if __name__ == "__main__":
    main()
