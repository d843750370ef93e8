"""Count the requests of builds in a bucket, and time them against builds in a folder, as whole processes in turn.

usage: far_store.py [--rows N] [--runs N] [--milliseconds N]

The bucket is on a loopback S3 server, with a delay before every request. Rows are those of Alpaca with phi-2's
tokenizer if $TOKENLOOM_REAL_DATA is set; else those of the quickstart. Prints medians and ratios within the run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path

from build import BIN, ROOT, timed, write

sys.path.insert(0, str(ROOT / "tests"))
from support.object_service import object_service


def kinds(requests: list[str]) -> str:
    """Return the number of requests by method and kind of blob."""
    counted: Counter[str] = Counter()
    for request in requests:
        method, _, path = request.partition(" ")
        listed = "list-type" in path
        place = path.partition("stores%2F" if listed else "/stores/stores/")[2].replace("%2F", "/").partition("/")[2]
        counted[f"{'LIST' if listed else method} {place.partition('/')[0].partition('&')[0] or '-'}"] += 1
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counted.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=52_002)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--milliseconds", type=float, default=50)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    requests: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, config, _ = write(folder, options.rows)
        with object_service(folder / "cache") as service:
            service.proxy.delay = options.milliseconds / 1000
            for _ in range(options.runs):
                shutil.rmtree(folder / "store", ignore_errors=True)
                shutil.rmtree(folder / "cache", ignore_errors=True)
                address = service.address()
                for what, store, empty in (
                    ("cold, folder", str(folder / "store"), False),
                    ("cold, bucket", address, False),
                    ("unchanged, folder", str(folder / "store"), False),
                    ("unchanged, bucket", address, False),
                    ("unchanged, bucket, empty cache", address, True),
                ):
                    if empty:
                        shutil.rmtree(folder / "cache", ignore_errors=True)
                    service.proxy.plan()
                    spent, _ = timed([str(BIN / "tokenloom"), "build", str(config), "--store", store])
                    seconds.setdefault(what, []).append(spent)
                    requests[what] = [*service.proxy.requests]
    median = {what: statistics.median(spent) for what, spent in seconds.items()}
    print(f"{options.rows:,} rows, {options.milliseconds:g} ms before each request, medians of {options.runs} runs")
    for what, spent in median.items():
        local = median[f"{what.partition(',')[0]}, folder"]
        print(f"{what:31} {spent:6.2f} s, {spent / local:.2f} of the folder, {len(requests[what])} requests")
        if os.environ.get("VERBOSE"):
            print(f"    {kinds(requests[what])}")


if __name__ == "__main__":
    main()
