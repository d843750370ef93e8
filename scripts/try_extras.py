"""Install tokenloom with each of its extras into an empty environment, one after the other, and use it there.

python scripts/try_extras.py                all environments
python scripts/try_extras.py jax vision     only these, and `pipeline`, whose store the others read
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TORCH = "torch==2.13.0"

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

JAX_BATCH = """
from tokenloom.loaders import ArrayDataLoader, open_dataset
batch = next(iter(ArrayDataLoader(open_dataset("quickstart", store="store"), framework="jax", batch_size=4)))
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

USES: dict[str, list[list[object]]] = {
    "pipeline": [
        ["tokenloom", "build", QUICKSTART, "--store", "store"],
        ["tokenloom", "preview", QUICKSTART, "--store", "store", "--row", "3"],
        ["python", "-c", "import tokenloom.definitions as front; print(type(front.defs).__name__)"],
        ["python", "-c", BATCH],
    ],
    "": [
        ["tokenloom", "--version"],
        ["python", "-c", BATCH],
        ["python", ROOT / "examples" / "train.py", "quickstart", "--store", "store", "--steps", "2"],
    ],
    "s3": [["python", "-c", NO_SERVICE]],
    "train": [
        ["python", "-c", "import accelerate, lightning, trl; print(accelerate.__version__, trl.__version__)"],
        *(
            ["python", ROOT / "examples" / f"train_with_{name}.py", "quickstart", "--store", "store", "--steps", "2"]
            + ["--checkpoints", name]
            for name in ("accelerate", "lightning", "trainer", "trl")
        ),
    ],
    "jax": [
        ["python", "-c", JAX_BATCH],
        ["python", ROOT / "examples" / "train_with_jax.py", "quickstart", "--store", "store", "--steps", "2"]
        + ["--checkpoints", "jax"],
    ],
    "vision": [["python", "-c", IMAGES]],
}
"""Commands to run for each extra; they share a folder outside of the repository, with the store of the first."""


def run(command: list[object], folder: Path, **environment: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TOKENLOOM_STORE")}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=inherited | environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"failed: {' '.join(map(str, command))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    print("  ", (done.stdout.strip() or "done").splitlines()[-1][:150], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("extras", nargs="*", choices=[*filter(None, USES), "bare"], help="default: all")
    chosen = {"pipeline", *("" if name == "bare" else name for name in parser.parse_args().extras)}
    constraints = ["--constraint", ROOT / "constraints.txt"]
    with tempfile.TemporaryDirectory() as name:
        work = Path(name) / "work"
        work.mkdir()
        for extra, commands in USES.items():
            if len(chosen) > 1 and extra not in chosen:
                continue
            what, begun = f"{ROOT}[{extra}]" if extra else str(ROOT), time.monotonic()
            print(f"== pip install '.{f'[{extra}]' if extra else ''}'", flush=True)
            with tempfile.TemporaryDirectory(dir=name) as environment:
                venv.create(environment, with_pip=True)
                folder = Path(environment) / "bin"
                install: list[object] = [folder / "python", "-m", "pip", "install", "--quiet", *constraints]
                run([*install, TORCH], work)
                run([*install, what], work)
                run([folder / "python", "-m", "pip", "check"], work)
                for program, *arguments in commands:
                    run([folder / str(program), *arguments], work, AWS_ENDPOINT_URL="http://127.0.0.1:1")
            print(f"   {time.monotonic() - begun:.0f} seconds", flush=True)


if __name__ == "__main__":
    sys.exit(main())
