"""Install tokenloom with each of its extras into an empty environment, one after the other, and use it there.

python scripts/try_extras.py                all environments
python scripts/try_extras.py jax vision     only these, and `pipeline`, whose store the others read
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TORCH = "torch==2.13.0"
NOWHERE = "http://127.0.0.1:1"

BATCH = """
from tokenloom.loaders import TokenLoader, open_dataset
batch = next(iter(TokenLoader(open_dataset("quickstart", store="store"), batch_size=4)))
print("a batch of", *batch["input_ids"].shape)
"""

NO_SERVICE = """
from tokenloom import open_dataset
from tokenloom.errors import StoreUnavailableError
try:
    open_dataset("quickstart", store="s3://bucket/store")
except StoreUnavailableError as error:
    print("refused:", error)
else:
    raise SystemExit("a store without a service was opened")
"""

NO_CLUSTER = """
from tokenloom.errors import ClusterUnavailableError
from tokenloom.resources.engines.ray_engine import RayEngine
try:
    RayEngine(address="127.0.0.1:1").workers
except ClusterUnavailableError as error:
    print("refused:", error)
else:
    raise SystemExit("a cluster that does not exist was used")
"""

JAX_BATCH = """
from tokenloom.loaders import ArrayDataLoader, open_dataset
data = open_dataset("quickstart", store="store")
batch = next(iter(ArrayDataLoader(dataset_name=data, framework="jax", batch_size=4)))
print("a batch of", type(batch["input_ids"]).__module__, *batch["input_ids"].shape)
"""

IMAGES = """
import io
from PIL import Image
from tokenloom.loaders import VisionCollator
rows = []
for color in ("red", "green"):
    file = io.BytesIO()
    Image.new("RGB", (8, 8), color).save(file, "png")
    rows.append({"image": file.getvalue(), "label": 1})
print("images of", *VisionCollator()(rows)["pixel_values"].shape)
"""

QUICKSTART = ROOT / "tokenloom" / "pipelines" / "quickstart.yaml"

Command = list[str | Path]


def example(name: str, *options: str) -> Command:
    """Two steps of a training script."""
    return ["python", ROOT / "examples" / f"{name}.py", "quickstart", "--store", "store", "--steps", "2", *options]


USES: dict[str, list[Command]] = {
    "pipeline": [
        ["tokenloom", "build", QUICKSTART, "--store", "store"],
        ["tokenloom", "preview", QUICKSTART, "--store", "store", "--row", "3"],
        ["dagster", "definitions", "validate", "-m", "tokenloom.definitions"],
        ["python", "-c", BATCH],
    ],
    "bare": [["tokenloom", "--version"], ["python", "-c", BATCH], example("train")],
    "ray": [["python", "-c", NO_CLUSTER]],
    "s3": [["python", "-c", NO_SERVICE]],
    "train": [
        ["python", "-c", "import accelerate, lightning, trl; print(accelerate.__version__, trl.__version__)"],
        example("train_with_accelerate", "--checkpoints", "accelerate"),
        example("train_with_lightning", "--checkpoints", "lightning"),
        example("train_with_trainer", "--checkpoints", "trainer"),
        example("train_with_trl", "--checkpoints", "trl"),
    ],
    "jax": [["python", "-c", JAX_BATCH], example("train_with_jax", "--checkpoints", "jax")],
    "vision": [["python", "-c", IMAGES]],
}
"""Commands to run for each extra; they share a folder outside of the repository, with the store of the first."""


def run(command: Command, folder: Path, **environment: str) -> str:
    """The last line that a command prints. Exits with its output if it fails."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TOKENLOOM_STORE")}
    done = subprocess.run(command, cwd=folder, env=inherited | environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return (done.stdout.strip() or "done").splitlines()[-1][:150]


def try_extra(extra: str, checkout: Path, folder: Path, work: Path) -> None:
    """Install into `folder`, run the extra's commands in `work`, and print the last line of each."""
    venv.create(folder, with_pip=True)
    what = "." if extra == "bare" else f".[{extra}]"
    install: Command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt"]
    print(f"== pip install '{what}'", flush=True)
    run([*install, TORCH], checkout)
    run([*install, what], checkout)
    print("  ", run([folder / "bin" / "python", "-m", "pip", "check"], work), flush=True)
    for program, *arguments in USES[extra]:
        print("  ", run([folder / "bin" / program, *arguments], work, AWS_ENDPOINT_URL=NOWHERE), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=f"of {', '.join(USES)}; default: all")
    chosen = parser.parse_args().extras or [*USES]
    if unknown := set(chosen) - USES.keys():
        parser.error(f"unknown extra: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as name:
        work, checkout = Path(name) / "work", Path(name) / "checkout"
        work.mkdir()
        not_needed = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests")
        shutil.copytree(ROOT, checkout, symlinks=True, ignore=not_needed)
        for extra in USES:
            if extra in chosen or extra == "pipeline":
                with tempfile.TemporaryDirectory(dir=name) as folder:
                    try_extra(extra, checkout, Path(folder), work)


if __name__ == "__main__":
    main()
