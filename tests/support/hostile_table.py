"""Program: runs commands on hostile inputs, and prints what each took and how it ended.

`python -m support.hostile_table [KIND…]` prints a line per input: kind and name, bytes of peak memory, CPU seconds, and
the sentence or the rows; then the largest of each kind.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from support.command_children import CommandChildren
from support.hostile_inputs import all_inputs
from support.hostile_inputs.hostile_input import HostileInput, verdict_of
from support.small_tokenizers import byte_level

MEMORY, CPU_SECONDS = 1024 << 20, 10.0
"""Limits of a command, with the package itself, which takes about 100 MiB."""


def outcome(children: CommandChildren, hostile: HostileInput, folder: Path) -> tuple[int, float, str, str]:
    """Run the command in a new folder; return peak memory, CPU seconds, the verdict, and what is wrong or ""."""
    folder.mkdir()
    (folder / "tokenizer.json").write_text(byte_level().to_str())
    hostile.prepare(folder)
    ended = children.run(hostile.command, folder)
    fault = hostile.fault(ended, MEMORY, CPU_SECONDS)
    if (folder / "run").exists() or (folder / "data" / "run").exists():
        fault = "ran code"
    shutil.rmtree(folder)
    return ended.peak, ended.cpu, "" if fault else verdict_of(ended), fault


def main(*kinds: str) -> int:
    """Print the table; return the number of inputs with a fault."""
    largest: dict[str, tuple[int, int, float]] = {}
    faults = 0
    with tempfile.TemporaryDirectory() as parent, CommandChildren(Path(parent), HF_HUB_OFFLINE="1") as children:
        for hostile in all_inputs():
            if kinds and hostile.kind not in kinds:
                continue
            peak, cpu, verdict, fault = outcome(children, hostile, Path(parent, "run"))
            sentence = " ".join((fault or verdict).split())[:200]
            faults += bool(fault)
            mark = "FAULT " if fault else ""
            print(f"{hostile.kind}: {hostile.name[:60]}\t{peak}\t{cpu}\t{mark}{sentence}", flush=True)
            count, most, longest = largest.get(hostile.kind, (0, 0, 0.0))
            largest[hostile.kind] = count + 1, max(most, peak), max(longest, cpu)
    for kind, (count, most, longest) in largest.items():
        print(f"{kind}\t{count} inputs\t{most >> 20} MiB\t{longest} s")
    return faults


if __name__ == "__main__":
    sys.exit(min(main(*sys.argv[1:]), os.EX_USAGE))
