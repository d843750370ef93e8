"""Virtual environments for the loaders that tokenloom's is timed against, made by pip, and kept when they are ready."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
PACKAGES = {
    "peers": ["torch", "datasets", "torchdata==0.11.0", "litdata==0.2.76", "grain==0.2.18"],
    "mosaic": ["torch", "mosaicml-streaming==0.13.0"],
}
"""What is installed; versions that are not named are those of `constraints.txt`."""
STUB = {
    "__init__.py": "",
    "datasets.py": "class VisionDataset: ...\nclass CIFAR10: ...\n",
    "transforms/__init__.py": "",
    "transforms/functional.py": "def to_tensor(image): raise NotImplementedError\n",
}


def interpreter(home: Path, environment: str) -> Path:
    """The Python of an environment; the empty name stands for the running one."""
    return home / environment / "bin" / "python" if environment else Path(sys.executable)


def make_environments(home: Path) -> None:
    """Make those that are not ready; one that pip cannot make is named and left out."""
    pins = {line.partition("==")[0]: line for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines()}
    for name, packages in PACKAGES.items():
        asked = [pins.get(package, package) for package in packages]
        python, ready = interpreter(home, name), home / name / "ready"
        if ready.exists() and ready.read_text(encoding="utf-8").split() == asked:
            continue
        print(f"making {home / name}: {', '.join(asked)}", file=sys.stderr)
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(home / name)], check=True)
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *asked], check=True)
        except subprocess.CalledProcessError as error:
            print(f"{name} cannot be made: pip ended with {error.returncode}", file=sys.stderr)
            continue
        if name == "mosaic":
            stub_torchvision(home / name)
        ready.write_text("\n".join(asked), encoding="utf-8")


def stub_torchvision(environment: Path) -> None:
    """Put the few names that mosaicml-streaming imports of torchvision in its place: for text it uses none of them, and
    the wheel, which is built for CUDA, does not import beside a torch that is built for the CPU."""
    python = environment / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision"], check=True)
    packages = sysconfig.get_path("purelib", "venv", {"base": str(environment), "platbase": str(environment)})
    for name, text in STUB.items():
        path = Path(packages) / "torchvision" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
