"""YAML files made to exhaust memory or time, or to raise something else than a ConfigError."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from support.processes import run
from tokenloom.config.dataset import load_config, parse_config
from tokenloom.config.yaml_file import LARGEST_FILE, MOST_NODES
from tokenloom.errors import ConfigError

NAMED = "dataset: {name: x.jsonl}\n"


def doubled(levels: int) -> str:
    """Return anchors a0, a1, …, each of which holds the one before ten times."""
    lines = ["a0: &a0 [x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, levels)]
    return "\n".join(lines)


MERGED = "\n".join(["m0: &m0 {k: 1}"] + [f"m{n}: &m{n}\n  <<: [{', '.join([f'*m{n - 1}'] * 10)}]" for n in range(1, 9)])
HOSTILE = {
    "alias bomb": (
        f"training:\n  {doubled(9).replace(chr(10), chr(10) + '  ')}\n{NAMED}",
        r":\d+: more than .* values",
    ),
    "merge bomb": (f"training:\n  {MERGED.replace(chr(10), chr(10) + '  ')}\n{NAMED}", r":\d+: more than .* values"),
    "long text repeated": (f"training: {{a: &a {'x' * 9000}, b: [{'*a, ' * 9000}]}}\n", r":1: more than .* characters"),
    "alias of itself": (f"training: &a [*a, *a]\n{NAMED}", ":1: .*refers to itself"),
    "unknown alias": (f"training: *a\n{NAMED}", ":1: .*undefined alias"),
    "many nodes": (f"training: [{'1,' * (MOST_NODES + 1)}]\n", ":1: more than .* values"),
    "deep lists": (f"{NAMED}training: {'[' * 900}{']' * 900}", ":2: nested more than"),
    "very deep lists": (f"{NAMED}training: {'[' * 200_000}", ":2: nested more than"),
    "deep keys": ("".join(f"{' ' * n}k:\n" for n in range(900)), r":\d+: nested more than"),
    "deep question marks": (f"{NAMED}{'? ' * 20_000}", r":\d+: (nested more than|not valid YAML)"),
    "too large": ("#" * (LARGEST_FILE + 1), "larger than"),
    "6,000 digits": (f"{NAMED}tokenizer: {{max_length: {'9' * 6000}}}", ":2: tokenizer.max_length: .*integer"),
    "6,000 hex digits": (f"{NAMED}tokenizer: {{max_length: 0x{'f' * 6000}}}", ":2: tokenizer.max_length: .*integer"),
    "6,000 binary digits": (f"{NAMED}training: {{x: [0b{'1' * 60_000}]}}", ":2: training.x.0: .*integer"),
    "base 60": (f"{NAMED}training: {{x: 1{':59' * 9000}}}", ":2: training.x: .*integer"),
    "6,000 digits in a list": (f"{NAMED}training:\n  - {'9' * 6000}", ":3: training.0: .*integer"),
    "an impossible day": (f"{NAMED}training: {{x: 2026-13-45}}", ":2: training.x: .*timestamp"),
    "a typed text": (f"{NAMED}training: {{x: !!int abc}}", ":2: training.x: .*integer"),
    "bad base64": (f"{NAMED}training: {{x: !!binary é}}", ":2: training.x: .*base64"),
    "code": (f"{NAMED}training: !!python/object/apply:os.system [ls]", ":2: .*could not determine a constructor"),
    "a list as name": (f"{NAMED}training: {{[a, b]: 1}}", ":2: .*names of settings must be text"),
    "a mapping as name": (f"{NAMED}? {{a: 1}}\n: 2\n", ":2: .*names of settings must be text"),
    "a long name": (f"{NAMED}? {'k' * 100_000}\n: 1\n", ":2: .*name of 100,000 characters"),
    "a long choice": (f"{NAMED}tokenizer: {{padding: {'k' * 100_000}}}\n", ":2: tokenizer.padding: .*is not one of"),
    "many unknown names": (NAMED + "".join(f"unknown{n}: 1\n" for n in range(2000)), r"more faults"),
    "many doubled names": (NAMED + "dataset: 1\n" * 2000, r"more faults"),
    "merge of a number": (f"{NAMED}training: {{<<: 5}}", r":2: .*merging"),
    "two documents": (f"{NAMED}---\n{NAMED}", r":2: not valid YAML"),
    "control characters": (f"{NAMED}training: \x00", "not valid YAML"),
    "many names of one mapping": (f"mixture: {{{', '.join(f'k{n}: 1' for n in range(9000))}}}", ":1: mixture"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_within_a_second_with_its_place(tmp_path: Path, name: str) -> None:
    text, found = HOSTILE[name]
    path = tmp_path / "x.yaml"
    path.write_text(text)
    begin = time.process_time()
    with pytest.raises(ConfigError, match=found) as raised:
        load_config(path)
    assert time.process_time() - begin < 4
    lines = str(raised.value).splitlines()
    assert all(line.startswith(str(path)) for line in lines)
    assert len(lines) <= 51
    assert max(map(len, lines)) < 500
    if name != "too large":
        with pytest.raises(ConfigError, match=found):
            parse_config(text, path)


def test_merges_and_aliases_within_the_budget_still_load(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("training: {optimizer_args: {base: &b {lr: 1, day: 2026-01-02}, more: {<<: *b, lr: 2}}}\n" + NAMED)
    training = load_config(path).training
    assert training is not None
    assert training.optimizer_args["more"]["lr"] == 2
    assert str(training.optimizer_args["more"]["day"]) == "2026-01-02"


@pytest.mark.skipif(sys.platform == "win32", reason="no devices or FIFOs")
@pytest.mark.parametrize("kind", ["device", "fifo", "folder"])
def test_what_is_not_a_regular_file_is_refused_without_reading_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.yaml"
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(ConfigError, match=r"x.yaml: cannot be read: .*(not a regular file|directory)"):
        load_config(path)
    if kind == "fifo":
        ended = run([sys.executable, "-m", "tokenloom", "build", path])
        assert ended.returncode == 2
        assert len(ended.stderr.splitlines()) == 1
