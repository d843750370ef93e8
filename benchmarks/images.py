"""Time rows with images, beside `datasets.map` with the same processor and a DataLoader.

usage: images.py --processor FOLDER [--images N] [--workers N] [--cold]

Makes N photos of 200x200 to 640x480 pixels, each in a row of its own. Cold: `tokenloom build`, beside loading the rows
with `datasets` and mapping the processor over them, whose model inputs are then stored. A later epoch: batches of 8
from a `TokenLoader` without and with the cache of image inputs (that without workers), beside a DataLoader that decodes
and processes images in its collate function, and one that reads the stored model inputs. Each runs in a process of its
own. Prints images per second, and ratios. Times of `build` and `datasets.map` include the start of the process.
--cold: only these two.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

COMMON = """
import json, os, sys, time
from pathlib import Path
folder, processor, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
def load_processor():
    from tokenloom.resources.processors.processor import load_processor
    return load_processor(processor)
def rows_of(p):
    import datasets
    file, cache = str(folder / "rows.jsonl"), str(folder / "datasets")
    data = datasets.load_dataset("json", data_files=file, split="train", cache_dir=cache)
    return data.map(lambda row: {"image": str(folder / row["image"])}).cast_column("image", datasets.Image())
def encoded(p, rows):
    texts = [f"{p.image_token}{prompt}{answer}" for prompt, answer in zip(rows["prompt"], rows["completion"])]
    images = [[image.convert("RGB")] for image in rows["image"]]
    return p(text=texts, images=images, padding=True, return_tensors="pt")
"""

MAP = (
    COMMON
    + """
p = load_processor()
data = rows_of(p)
def one(rows):
    found = [encoded(p, {name: values[i:i + 1] for name, values in rows.items()}) for i in range(len(rows["image"]))]
    return {name: [each[name].numpy() for each in found] for name in found[0]}
data = data.map(one, batched=True, batch_size=16, num_proc=workers, remove_columns=data.column_names)
print(json.dumps(time.time() - float(os.environ["STARTED"])))
"""
)
MAP_AND_SAVE = (
    MAP
    + """
data.save_to_disk(str(folder / "mapped"))
"""
)

COLLATED = (
    COMMON
    + """
from torch.utils.data import DataLoader
p = load_processor()
data = rows_of(p)
collate = lambda rows: encoded(p, {name: [row[name] for row in rows] for name in rows[0]})
loader = DataLoader(data, batch_size=8, num_workers=workers, collate_fn=collate, persistent_workers=workers > 0)
for epoch in range(3):
    started = time.perf_counter()
    images = sum(len(batch["input_ids"]) for batch in loader)
print(json.dumps(time.perf_counter() - started))
"""
)

STORED = (
    COMMON
    + """
import datasets, numpy as np, torch
from torch.utils.data import DataLoader
data = datasets.load_from_disk(str(folder / "mapped")).with_format("numpy")
def collate(rows):
    return {name: torch.from_numpy(np.concatenate([np.atleast_2d(np.stack(row[name])) for row in rows]))
            for name in ("pixel_values", "image_grid_thw") if name in rows[0]}
loader = DataLoader(data, batch_size=8, num_workers=workers, collate_fn=collate, persistent_workers=workers > 0)
for epoch in range(3):
    started = time.perf_counter()
    images = sum(1 for batch in loader)
print(json.dumps(time.perf_counter() - started))
"""
)

OWN = (
    COMMON
    + """
from tokenloom.loaders import TokenLoader, open_dataset
loader = TokenLoader(open_dataset("rows", store=folder / "store"), batch_size=8, padding="longest",
                     num_workers=workers, persistent_workers=workers > 0)
for epoch in range(3):
    started = time.perf_counter()
    images = sum(len(batch["input_ids"]) for batch in loader)
print(json.dumps(time.perf_counter() - started))
"""
)


def make_rows(folder: Path, count: int) -> None:
    """Write photos and a row for each."""
    import numpy as np
    from PIL import Image

    (folder / "images").mkdir()
    words = ["red", "blue", "green", "cat", "dog", "house", "tree", "car", "sky", "water", "hand", "book", "lamp"]

    def row(number: int) -> str:
        random = np.random.default_rng(number)
        size = int(random.integers(200, 640)), int(random.integers(200, 480))
        picture = Image.fromarray(random.integers(0, 255, (24, 32, 3), np.uint8)).resize(size, Image.Resampling.BICUBIC)
        picture.save(folder / "images" / f"{number}.jpg", quality=85)
        answer = " ".join(random.choice(words, 12))
        return json.dumps({"image": f"images/{number}.jpg", "prompt": "What is this? ", "completion": answer})

    with ThreadPoolExecutor() as threads:
        (folder / "rows.jsonl").write_text("\n".join(threads.map(row, range(count))) + "\n", encoding="utf-8")


def build(folder: Path, processor: Path) -> float:
    """Return the seconds of `tokenloom build`, start of the process included."""
    settings = f"dataset: {{name: rows.jsonl}}\ntokenizer: {{processor: {processor}, max_length: 4096}}\n"
    (folder / "rows.yaml").write_text(settings + "prompt_template: {format_type: completion}\n", encoding="utf-8")
    started = time.perf_counter()
    command = [sys.executable, "-m", "tokenloom", "build", "rows.yaml", "--store", "store"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - started


def timed(script: str, *arguments: object, **environment: str) -> float:
    """Return the seconds that a script prints."""
    command = [sys.executable, "-W", "ignore", "-c", script, *map(str, arguments)]
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment, "STARTED": str(time.time())},
    )
    return json.loads(done.stdout.splitlines()[-1])


def show(images: int, times: dict[str, float]) -> None:
    """Print images per second, given seconds."""
    for name, seconds in times.items():
        print(f"{name:12} {images / seconds:10,.0f} images/s {seconds:8.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processor", type=Path, required=True, help="folder with a processor and its tokenizer")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cold", action="store_true", help="time only build and datasets.map")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokenloom-images-") as temporary:
        folder, processor, workers = Path(temporary), chosen.processor.resolve(), chosen.workers
        make_rows(folder, chosen.images)
        cold, again = build(folder, processor), build(folder, processor)
        mapped = timed(MAP if chosen.cold else MAP_AND_SAVE, folder, processor, workers)
        show(chosen.images, {"build": cold, "build again": again, "datasets.map": mapped})
        print(f"cold: {mapped / cold:.1f} times datasets.map")
        if chosen.cold:
            return
        own = timed(OWN, folder, processor, workers)
        kept = timed(OWN, folder, processor, 0, TOKENLOOM_IMAGE_CACHE=str(folder / "cache"))
        peers = {
            "collated": timed(COLLATED, folder, processor, workers),
            "stored": timed(STORED, folder, processor, workers),
        }
    show(chosen.images, {"TokenLoader": own, "cached": kept, **peers})
    for name, seconds in {"an epoch without cache": own, "a cached epoch": kept}.items():
        collated, stored = (peer / seconds for peer in peers.values())
        print(f"{name}: {collated:.1f} times a DataLoader, {stored:.1f} times one of stored model inputs")


if __name__ == "__main__":
    main()
