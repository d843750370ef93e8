"""Read an epoch from a bucket on two ranks, and resume in it with an empty cache.

usage: far_reading.py [--chunks N] [--runs N] [--milliseconds N]

The bucket is on a loopback S3 server, with a delay before every request. The dataset has chunks of about 3 MB, in rows
of 128 tokens on average, and the cache holds two fifths of it. Prints

- for an epoch of the block shuffle on two ranks of one host: the bytes of chunks that were downloaded, as a multiple of
  the dataset, the number of requests, and tokens per second as a ratio to a folder in the same run;
- for each shuffle, resumed in the middle of the epoch by a fresh process that has imported tokenloom: the seconds from
  `open_dataset` to the first batch of 16 rows, and those that it used the CPU, as medians.

Server, proxy and ranks share the machine, so that the ratio is a lower bound.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tokenloom.loaders import TokenLoader, open_dataset

TOKENS, MEAN = 1_000_000, 128
BATCH = 64
FIRST_BATCH = 16
"""Rows per batch of the epoch, and of what resumes."""


def loader_of(store: str, shuffle: Any, size: int) -> TokenLoader:
    return TokenLoader(open_dataset("far", store=store), batch_size=size, shuffle=shuffle, seed=1, padding="longest")


def rank_main(store: str) -> None:
    """Read an epoch in step with the other ranks, as training does. Rank 0 prints the seconds from the first batch on,
    and the tokens of all ranks."""
    dist.init_process_group("gloo")
    tokens, started = torch.zeros(1), 0.0
    for batch in loader_of(store, "block", BATCH):
        started = started or time.perf_counter()
        tokens += batch["attention_mask"].sum()
        dist.all_reduce(torch.ones(1))
    seconds = time.perf_counter() - started
    dist.all_reduce(tokens)
    if dist.get_rank() == 0:
        print(json.dumps([seconds, float(tokens)]))
    dist.destroy_process_group()


def resume_main(store: str, shuffle: str, position: str) -> None:
    """Print the seconds and the CPU seconds from `open_dataset` to the first batch after a position."""
    started, used = time.perf_counter(), time.process_time()
    loader = loader_of(store, shuffle, FIRST_BATCH)
    loader.load_state_dict({**loader.state_dict(), "position": int(position)})
    next(iter(loader))
    print(json.dumps([time.perf_counter() - started, time.process_time() - used]), flush=True)
    os._exit(0)  # without waiting for downloads


def run(*arguments: str, ranks: int = 0) -> Any:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    command = [sys.executable, *torchrun, __file__, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=96)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--milliseconds", type=float, default=50)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from support.object_service import object_service
    from support.stored_sequences import write_sequences

    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-") as name:
        folder, cache = Path(name) / "store", Path(name) / "cache"
        write_sequences(folder, "far", [TOKENS] * options.chunks, MEAN)
        dataset = open_dataset("far", store=folder)
        chunks = {chunk.output: chunk.bytes for chunk in dataset.chunks}
        size, rows = sum(chunks.values()), len(dataset)
        os.environ["TOKENLOOM_CACHE_SIZE"] = str(size * 2 // 5)
        with object_service(cache) as service:
            os.environ["TOKENLOOM_CACHE_SIZE"] = str(size * 2 // 5)
            address = service.address()
            service.copy(folder, address)
            service.proxy.delay = options.milliseconds / 1000
            print(
                f"{size / 1e6:,.0f} MB in {len(chunks)} chunks, {rows:,} rows, {options.milliseconds:g} ms per request"
            )
            ratios, downloaded, requests = [], [], []
            for _ in range(options.runs):
                shutil.rmtree(cache, ignore_errors=True)
                service.proxy.plan()
                far, local = (run("--rank", store, ranks=2) for store in (address, str(folder)))
                sent = service.proxy.sent.items()
                downloaded.append(sum(count for request, count in sent if request[-70:-6] in chunks) / size)
                requests.append(len(service.proxy.requests))
                ratios.append(local[0] / far[0])
                print(f"    {far[1] / far[0] / 1e6:.1f} M tokens/s, {local[1] / local[0] / 1e6:.1f} from a folder")
            print(f"epoch on 2 ranks: {max(downloaded):.3f} of the dataset downloaded, {max(requests)} requests")
            print(f"tokens per second: {statistics.median(ratios):.2f} of a folder")
            for shuffle in ("block", "full", "none"):
                seconds = []
                for _ in range(options.runs):
                    shutil.rmtree(cache, ignore_errors=True)
                    position = rows // 2 // FIRST_BATCH * FIRST_BATCH
                    seconds.append(run("--resume", address, shuffle, str(position)))
                typical, used = (statistics.median(column) for column in zip(*seconds, strict=True))
                print(f"resumed, {shuffle}: {typical:.2f} s to the first batch, {used:.2f} s of them on the CPU")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(sys.argv[2])
    elif sys.argv[1:2] == ["--resume"]:
        resume_main(*sys.argv[2:])
    else:
        main()
