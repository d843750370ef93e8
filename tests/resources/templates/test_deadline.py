"""The deadline of a rendering: work that is not counted ends the build, by name, and stores nothing."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from support.datasets_on_disk import write_dataset
from support.processes import DEADLINE
from tokenloom.assets.building.build import Build
from tokenloom.config import PipelineConfig
from tokenloom.errors import DeadlineError
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.templates import jinja, sandbox

TEMPLATE = "Q:\n{{ instruction | tojson }}\nA: {{ output }}"
LONG = 4
"""Seconds: longer than any other rendering of these tests takes, even on a machine that stalls."""
PROMPT = {"format_type": "jinja", "template": TEMPLATE, "label_column": "output"}


def test_a_rendering_that_never_ends_fails_the_build_with_template_and_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(value: Any, *_: Any, **__: Any) -> str:
        while value.startswith("7:"):
            pass
        return json.dumps(value, ensure_ascii=False)

    config = PipelineConfig.from_file(write_dataset(tmp_path, 10, prompt_template=PROMPT))

    def build() -> int:
        jinja._compile.cache_clear()
        build = Build(config, ArtifactStore(tmp_path / "store"), ComputeEngine(2))
        return list(build.run_all("prompts"))[-1].rows_out

    with monkeypatch.context() as patch:
        patch.setattr(jinja, "_tojson", stuck)
        patch.setattr(sandbox, "SECONDS", LONG)
        with pytest.raises(DeadlineError) as caught:
            build()
    assert f"prompts, small.jsonl:8: template, line 2: one row takes more than {LONG} s" in str(caught.value)
    assert caught.value.exit_code == 1
    assert build() == 10


def test_a_deadline_only_ends_the_rendering_that_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", LONG)
    ended: list[str] = []

    def render(name: str, seconds: float) -> None:
        try:
            thread = sandbox.start(object())
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                pass
            sandbox.stop(thread)
            ended.append(name)
        except DeadlineError:
            ended.append(f"{name} late")

    threads = [threading.Thread(target=render, args=case) for case in (("short", 0.1), ("long", 60.0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == ["short", "long late"]
    assert not sandbox._running


def _late_in_a_fork(answers: Any) -> None:
    sandbox.SECONDS = 1
    try:
        sandbox.start(object())
        for _ in range(600):
            time.sleep(0.1)
    except DeadlineError:
        answers.put("late")


def test_a_forked_process_has_its_own_watch() -> None:
    sandbox.stop(sandbox.start(object()))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=_late_in_a_fork, args=(answers,), daemon=True)
    process.start()
    process.join(DEADLINE)
    assert answers.get(timeout=1) == "late"
