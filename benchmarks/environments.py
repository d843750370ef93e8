"""Virtual environments for the other loaders, installed by pip and reused once they are ready."""

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
"""Packages per environment; versions not given here come from `constraints.txt`."""
STUB = {
    "__init__.py": "",
    "datasets.py": "class VisionDataset: ...\nclass CIFAR10: ...\n",
    "transforms/__init__.py": "",
    "transforms/functional.py": "def to_tensor(image): raise NotImplementedError\n",
}


def interpreter(home: Path, environment: str) -> Path:
    """Return the Python of an environment; an empty name means the running one."""
    return home / environment / "bin" / "python" if environment else Path(sys.executable)


def make_environments(home: Path) -> None:
    """Create the environments that are not ready. One that pip cannot install is reported and skipped."""
    pins = {line.partition("==")[0]: line for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines()}
    for name, packages in PACKAGES.items():
        requirements = [pins.get(package, package) for package in packages]
        python, ready = interpreter(home, name), home / name / "ready"
        if ready.exists() and ready.read_text(encoding="utf-8").split() == requirements:
            continue
        print(f"creating {home / name}: {', '.join(requirements)}", file=sys.stderr)
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(home / name)], check=True)
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *requirements], check=True)
        except subprocess.CalledProcessError as error:
            print(f"cannot create {name}: pip exited with {error.returncode}", file=sys.stderr)
            continue
        if name == "mosaic":
            stub_torchvision(home / name)
        ready.write_text("\n".join(requirements), encoding="utf-8")


def stub_torchvision(environment: Path) -> None:
    """Replace torchvision by a stub with the names that mosaicml-streaming imports.

    Text datasets use none of them, and the wheel, built for CUDA, cannot be imported next to a torch built for the CPU.
    """
    python = environment / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision"], check=True)
    packages = sysconfig.get_path("purelib", "venv", {"base": str(environment), "platbase": str(environment)})
    for name, text in STUB.items():
        path = Path(packages) / "torchvision" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
