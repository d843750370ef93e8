"""Read one large file from a slow place: as many workers against one, and against as many workers with one reader.

usage: readers.py [--megabytes N] [--workers N] [--rate N] [--milliseconds N] [--format jsonl|parquet]
                  [--place folder|http] [--runs N]

Every reader gets `--rate` MB per second, and each of its requests waits `--milliseconds` first, as with a network file
system or an object store: more readers get more. `folder` slows down reads of a local file, `http` those of a server
on loopback. Each run is a process of its own that builds `raw` into an empty store; the variants alternate. Prints the
median seconds of each, their ratios, and whether the digests are equal.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from alpaca import source, write_rows

from tokenloom.assets.building.build import Build
from tokenloom.config import PipelineConfig
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.sources import large_file, source_file
from tokenloom.resources.store import ArtifactStore


class SlowServer(BaseHTTPRequestHandler):
    """Sends ranges of the file `path`, slowly."""

    path_of: Path
    rate: float
    delay: float
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer(b"", self.path_of.stat().st_size, 200)

    def do_GET(self) -> None:
        start, end = map(int, re.findall(r"\d+", self.headers.get("Range", "bytes=0-0")))
        with self.path_of.open("rb") as file:
            file.seek(start)
            data = file.read(end + 1 - start)
        time.sleep(self.delay + len(data) / self.rate)
        self.answer(data, len(data), 206, f"bytes {start}-{start + len(data) - 1}/{self.path_of.stat().st_size}")

    def answer(self, data: bytes, size: int, status: int, sent: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        self.send_header("Accept-Ranges", "bytes")
        if sent:
            self.send_header("Content-Range", sent)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def slow_down(rate: float, delay: float) -> None:
    """Make every read of a source file in this process take as long as from a slow place, in the thread that reads."""
    pread, read, opened = os.pread, source_file._read, pa.OSFile

    def slow(size: int) -> None:
        time.sleep(delay + size / rate)

    def slow_pread(descriptor: int, size: int, start: int) -> bytes:
        data = pread(descriptor, size, start)
        slow(len(data))
        return data

    def slow_read(file: Any, size: int) -> bytes:
        data = read(file, size)
        slow(len(data))
        return data

    class SlowFile:
        """A file that Arrow gets wrapped."""

        closed = False

        def __init__(self, path: str):
            self.file = opened(path)
            self.seek, self.tell = self.file.seek, self.file.tell

        def __enter__(self) -> Any:
            return pa.PythonFile(self, "r")

        def __exit__(self, *error: object) -> None:
            self.file.close()

        def read(self, size: int = -1) -> bytes:
            data = self.file.read(None if size < 0 else size)
            slow(len(data))
            return data

    large_file.os = type("os", (), {**vars(os), "pread": staticmethod(slow_pread)})  # only this module's
    source_file._read = slow_read
    source_file.pa = type("pa", (), {**vars(pa), "OSFile": SlowFile})


def run(name: str, workers: int, readers: int, slow: tuple[float, float] | None) -> None:
    """Build `raw` in this process. Print its seconds, digest and the peak memory in MB."""
    if slow:
        slow_down(*slow)
    large_file.READERS = min(large_file.READERS, readers)
    with tempfile.TemporaryDirectory() as store:
        config = PipelineConfig.from_mapping({"dataset": {"name": name}})
        build, started = Build(config, ArtifactStore(store), ComputeEngine(workers)), time.perf_counter()
        report = build.run("raw")
        found = {"seconds": time.perf_counter() - started, "digest": report.digest, "rows": report.rows_out}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(json.dumps({**found, "peak_mb": peak}))


def write(folder: Path, megabytes: int, format: str) -> Path:
    """Write distinct rows of about so many MB."""
    rows, _ = source(folder)
    path = folder / "rows.jsonl"
    write_rows(path, rows, len(rows))
    write_rows(path, rows, max(len(rows) * megabytes * 1_000_000 // path.stat().st_size, 1))
    if format == "jsonl":
        return path
    blocks = pj.open_json(path, pj.ReadOptions(block_size=8 << 20))
    with pq.ParquetWriter(folder / "rows.parquet", blocks.schema, compression="zstd") as sink:
        for batch in blocks:
            sink.write_table(pa.Table.from_batches([batch]))
    return folder / "rows.parquet"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=2000, metavar="N")
    parser.add_argument("--workers", type=int, default=4, metavar="N")
    parser.add_argument("--rate", type=float, default=20, metavar="N")
    parser.add_argument("--milliseconds", type=float, default=10, metavar="N")
    parser.add_argument("--format", choices=["jsonl", "parquet"], default="jsonl")
    parser.add_argument("--place", choices=["folder", "http"], default="folder")
    parser.add_argument("--runs", type=int, default=3, metavar="N")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    speed = args.rate * 1e6, args.milliseconds / 1e3
    if args.child:
        name, workers, readers = args.child
        return run(name, int(workers), int(readers), speed if args.place == "folder" else None)
    variants = {(1, 1): "one worker", (args.workers, 1): f"{args.workers} workers, one reader"}
    variants[args.workers, large_file.READERS] = f"{args.workers} workers that read"
    found: dict[tuple[int, int], list[dict[str, Any]]] = {variant: [] for variant in variants}
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-") as folder:
        path = write(Path(folder), args.megabytes, args.format)
        SlowServer.path_of, SlowServer.rate, SlowServer.delay = path, *speed
        server = ThreadingHTTPServer(("127.0.0.1", 0), SlowServer)
        Thread(target=server.serve_forever, daemon=True).start()
        name = str(path) if args.place == "folder" else f"http://127.0.0.1:{server.server_port}/{path.name}"
        print(f"{path.stat().st_size / 1e6:,.0f} MB of {args.format}, {args.rate:g} MB/s per reader, {args.place}")
        for _ in range(args.runs):
            for variant, results in found.items():
                child = [sys.executable, __file__, *sys.argv[1:], "--child", name, *map(str, variant)]
                printed = subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True).stdout
                results.append(json.loads(printed.splitlines()[-1]))
        server.shutdown()
    base = found[args.workers, large_file.READERS]
    for variant, results in found.items():
        seconds, peak = (statistics.median(each[name] for each in results) for name in ("seconds", "peak_mb"))
        ratio = statistics.median(one["seconds"] / two["seconds"] for one, two in zip(results, base, strict=True))
        print(f"{variants[variant]:<24} {seconds:7.2f} s, {ratio:.2f} of the time of the last, peak {peak:,.0f} MB")
    digests = {each["digest"] for results in found.values() for each in results}
    print(f"{base[0]['rows']:,} rows; digests are {'equal' if len(digests) == 1 else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
