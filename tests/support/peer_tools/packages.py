"""Imports packages of other tools from a folder of their own, with empty modules for what they need only to train."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import os
import sys
import types
from unittest.mock import MagicMock

_UNUSED = [
    *("art", "av", "axolotl.integrations.base", "axolotl.loaders", "axolotl.monkeypatch", "axolotl.telemetry"),
    *("axolotl.utils.data.sft", "axolotl.utils.samplers", "axolotl.utils.trainer", "axolotl_contribs_lgpl"),
    *("axolotl_contribs_mit", "bitsandbytes", "evaluate", "fastapi", "fire", "gradio", "kernels", "librosa"),
    *("liger_kernel", "lm_eval", "matplotlib", "mistral_common", "mlflow", "modelscope", "numba", "openmind"),
    *("optimum", "posthog", "schedulefree", "sglang", "sse_starlette", "tensorboard", "torchaudio", "torchvision"),
    *("trackio", "tyro", "uvicorn", "vllm", "wandb", "xformers"),
]


class _Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if any(name == unused or name.startswith(f"{unused}.") for unused in _UNUSED):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__, module.__all__ = [], spec, spec.name, []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def use_packages(folder: str) -> None:
    """Let packages of a folder, as `pip install --no-deps --target` writes it, be imported after all others."""
    import datasets
    import torch
    import transformers.utils  # noqa: F401  # they look for packages that are empty here

    assert datasets and torch
    os.environ["DISABLE_VERSION_CHECK"] = "1"
    sys.path.append(folder)
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: "0.0.1" if name in _UNUSED else version(name)  # type: ignore[assignment]
    sys.meta_path.insert(0, _Empty())
