"""Time how fast rows get the fingerprints that near duplicates share, beside datatrove and text-dedup.

usage: duplicates.py [--rows N] [--runs N] [--peers PYTHON]

Rows are those of Alpaca if $TOKENLOOM_REAL_DATA is set, else those of the quickstart. Each program gets the same texts
in memory and computes signatures of word 5-grams in one thread: tokenloom's stage, with exact hashes and 126
permutations; text-dedup's `embed_func`, with 128; datatrove's `MinhashDedupSignature`, with its defaults, 112. PYTHON
is an interpreter with `datatrove==0.10.1 text-dedup==0.4.0 "xxhash<4" spacy tokenizers`. Prints rows per CPU second,
and ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from alpaca import source

TEXT_DEDUP = """
import json, sys, time
import numpy as np
import text_dedup.minhash as peer
from text_dedup.utils import xxh3_32hash, optimal_param
texts = json.load(open(sys.argv[1]))
bands, rows = optimal_param(0.8, 128)
ranges = [(i * rows, (i + 1) * rows) for i in range(bands)]
prime = np.uint64((1 << 61) - 1)
random = np.random.RandomState(42)
permutations = (random.randint(1, prime, 128, dtype=np.uint64), random.randint(0, prime, 128, dtype=np.uint64))
settings = dict(num_perm=128, ngram_size=5, min_length=5, hashranges=ranges, permutations=permutations,
                hash_func=xxh3_32hash, dtype=np.uint32, max_hash=np.uint32((1 << 32) - 1), modulo_prime=prime)
started = time.process_time()
for number, text in enumerate(texts):
    peer.embed_func(text, number, **settings)
print(time.process_time() - started)
"""
DATATROVE = """
import json, sys, time
from datatrove.data import Document
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
texts = json.load(open(sys.argv[1]))
step = MinhashDedupSignature(output_folder=sys.argv[2], config=MinhashConfig())
step.get_signature(step.get_shingles(texts[0]))
started = time.process_time()
for text in texts:
    shingles = step.get_shingles(text)
    if shingles.size:
        step.get_signature(shingles)
print(time.process_time() - started)
"""


def own(texts: list[str]) -> float:
    """Return the CPU seconds that the stage takes for these texts, in chunks of 10,000 rows."""
    import pyarrow as pa

    from tokenloom.assets.fingerprints.stage import Compared, fingerprints

    compared = Compared("text", ngram_size=5, bands=18, band_rows=7)
    tables = [
        pa.table({"_row": pa.array(range(len(some)), pa.int32()), "text": some})
        for start in range(0, len(texts), 10_000)
        if (some := texts[start : start + 10_000])
    ]
    started = time.process_time()
    for table in tables:
        fingerprints(table, compared)
    return time.process_time() - started


def peer(python: str, script: str, *arguments: str) -> float | None:
    """Return the CPU seconds that a script prints, or None if it fails."""
    done = subprocess.run([python, "-c", script, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-500:], file=sys.stderr)
        return None
    return float(done.stdout.split()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peers", metavar="PYTHON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows, _ = source(Path(folder))
        texts = [f"{row['instruction']}\n{row['input']}\n{row['output']}" for row in rows][: args.rows]
        file = Path(folder) / "texts.json"
        file.write_text(json.dumps(texts))
        seconds: dict[str, list[float]] = {"tokenloom": [], "text-dedup": [], "datatrove": []}
        for _ in range(args.runs):
            seconds["tokenloom"].append(own(texts))
            for name, script in (("text-dedup", TEXT_DEDUP), ("datatrove", DATATROVE)) if args.peers else ():
                found = peer(args.peers, script, str(file), folder)
                seconds[name] += [] if found is None else [found]
    mine = statistics.median(seconds["tokenloom"])
    for name, found in seconds.items():
        if found:
            spent = statistics.median(found)
            rate, ratio = len(texts) / spent, spent / mine
            print(f"{name:10} {rate:10,.0f} rows per CPU second   {ratio:6.1f} times tokenloom's CPU time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
