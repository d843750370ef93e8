"""Families that are served although their own calls return tensors, and those that are refused with the true reason."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from support import processes
from support.paths import TESTS
from support.soak import sweep
from support.vision_processors import FURTHER, NOT_USABLE, differences
from tokenloom.resources.processors.certificate import certify
from tokenloom.resources.processors.processor import Processor, ProcessorError


@pytest.mark.parametrize("name", FURTHER)
def test_rows_and_batches_equal_the_processors_own_call(name: str) -> None:
    assert differences(FURTHER[name]()) == []


@pytest.mark.parametrize("name", NOT_USABLE)
def test_what_is_refused_has_its_reason(name: str) -> None:
    make, reason = NOT_USABLE[name]
    with pytest.raises(ProcessorError) as refused:
        certify(Processor(make()))
    assert str(refused.value).startswith(reason) and "\n" not in str(refused.value)


@sweep
def test_families_that_need_torchvision() -> None:
    """Served or refused with the reason. A stand-in for torchvision runs their own code."""
    program = TESTS / "support" / "torchvision_families.py"
    done = processes.run([sys.executable, program], check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    refused = found.pop("llama4")
    assert found == {"pixtral": [], "mistral3": [], "lfm2_vl": [], "phi4_multimodal": []}
    assert (
        refused
        == "Llama4Processor cannot be used: NumPy cannot hold its pixel_values: Got unsupported ScalarType BFloat16"
    )


@pytest.mark.parametrize("error", [KeyError("pixels"), RuntimeError("no kernel"), StopIteration(), AssertionError()])
def test_an_error_of_a_processors_code_is_a_sentence(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = FURTHER["deepseek_vl"]()

    def fails(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(type(loaded), "replace_image_token", fails)
    with pytest.raises(ProcessorError, match=r"DeepseekVLProcessor (cannot be used|rejects)") as refused:
        certify(Processor(loaded))
    assert "\n" not in str(refused.value)
