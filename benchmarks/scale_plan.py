"""What a dataset of very many tokens takes, from the rate and the sizes of a small build. Run by `scale.py --plan`."""

from __future__ import annotations

import argparse
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from build import BIN, write

from tokenloom.resources.store import ArtifactStore

STAGES = ("raw", "schema", "columns", "prompts", "tokens", "sequences")


@dataclass(frozen=True)
class Measured:
    """A build: CPU seconds, bytes of source, tokens, chunks, files written, and bytes of each stage's outputs."""

    seconds: float
    source: int
    tokens: int
    chunks: int
    files: int
    stages: dict[str, int]


def measured(folder: Path, rows: int) -> Measured:
    """Build rows of Alpaca into an empty store."""
    folder.mkdir(parents=True)
    data, config, _ = write(folder, rows)
    command = [str(BIN / "tokenloom"), "build", str(config), "--store", str(folder / "store")]
    null, environment = subprocess.DEVNULL, {**os.environ, "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(command, stdout=null, stderr=null, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}: exit {os.waitstatus_to_exitcode(status)}")
    store = ArtifactStore(folder / "store")
    manifests = {stage: store.manifest("rows", stage) for stage in STAGES}
    files = sum(path.is_file() for kind in ("objects", "actions") for path in (folder / "store" / kind).rglob("*"))
    return Measured(
        usage.ru_utime + usage.ru_stime,
        data.stat().st_size,
        manifests["sequences"].total("tokens"),
        len(manifests["raw"].chunks),
        files,
        {stage: manifest.total("bytes") for stage, manifest in manifests.items()},
    )


def print_plan(folder: Path, options: argparse.Namespace) -> None:
    """Print the plan. The costs of starting a build are left out: two builds are compared."""
    rows = options.rows or 416_000
    small, large = (measured(folder / f"{count}", count) for count in (rows // 4, rows))
    tokens = large.tokens - small.tokens
    scale = options.tokens / tokens
    seconds = large.seconds - small.seconds
    chunks, files = ((getattr(large, name) - getattr(small, name)) * scale for name in ("chunks", "files"))
    print(f"{rows:,} rows against {rows // 4:,}: {tokens:,} tokens more in {seconds:.1f} more core-seconds")
    print(f"{tokens / seconds / 1e6:.2f} M tokens per core-second")
    print(f"\n{options.tokens:.0e} tokens")
    print(f"{'stage':24}{'bytes per token':>18}{'TB':>10}")
    sizes = {"source": large.source / large.tokens}
    sizes |= {stage: size / large.tokens for stage, size in large.stages.items()}
    for name, size in sizes.items():
        print(f"{name:24}{size:18.2f}{size * options.tokens / 1e12:10.2f}")
    kept, every = sizes["sequences"], sum(sizes.values()) - sizes["source"]
    hours = seconds * scale / 3600
    cores = options.nodes * options.cores
    print(f"{'all stages':24}{every:18.2f}{every * options.tokens / 1e12:10.2f}")
    print()
    for name, number in {"chunks": chunks, "files written": files, "core-hours": hours}.items():
        print(f"{name:24}{number:18,.0f}")
    print(f"{f'hours on {options.nodes} × {options.cores} cores':24}{hours / cores:18.1f}")
    costs = {
        f"core-hours at {options.per_core_hour}": hours * options.per_core_hour,
        f"1,000 writes at {options.per_1000_writes}": files / 1000 * options.per_1000_writes,
        f"all stages, GB-month at {options.per_gb_month}": every * options.tokens / 1e9 * options.per_gb_month,
        f"sequences, GB-month at {options.per_gb_month}": kept * options.tokens / 1e9 * options.per_gb_month,
    }
    print()
    for what, cost in costs.items():
        print(f"{what:32}{cost:10,.0f}")
