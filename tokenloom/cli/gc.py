"""`tokenloom gc`: says what no dataset needs any more, and removes it when asked to."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from rich.console import Console

from tokenloom.cli.sizes import duration, size
from tokenloom.cli.visible import say
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.gc import Garbage, collect, total
from tokenloom.resources.store.objects import object_digest

KINDS = ("versions", "actions", "objects", "tokenizers")


def run_gc(store: str | None, keep: int, older_than: str, delete: bool, as_json: bool) -> int:
    """Collect a store's garbage; returns the exit code."""
    age, progress = duration("--older-than", older_than), Console(stderr=True)
    with progress.status("gc") as status:

        def on_step(step: str) -> None:
            if progress.is_terminal:
                status.update(f"gc: {step}")
            else:
                progress.print(f"gc: {step}", highlight=False, soft_wrap=True)

        found = collect(ArtifactStore(store), keep, age, delete, on_step)
    told, shown = summary(found), Console(stderr=as_json)
    for line in report(told, delete):
        say(shown, line)
    if as_json:
        print(json.dumps({"deleted": delete, **told}))
    return 0


def summary(found: Garbage) -> dict[str, Any]:
    """Count and bytes by kind, and of the objects by the dataset that let them go; "" is nobody."""
    told: dict[str, Any] = {
        kind: {"count": len(getattr(found, kind)), "bytes": total(getattr(found, kind))} for kind in KINDS
    }
    counts, sizes = Counter[str](), Counter[str]()
    for blob in found.objects:
        name = found.owners.get(object_digest(blob.name) or "", "")
        counts[name] += 1
        sizes[name] += blob.size
    told["datasets"] = {name: {"objects": counts[name], "bytes": sizes[name]} for name in sorted(counts)}
    return told


def report(told: dict[str, Any], deleted: bool) -> list[str]:
    """What was found, line by line."""
    kinds = [f"{told[kind]['count']:,} {kind} ({size(told[kind]['bytes'])})" for kind in KINDS if told[kind]["count"]]
    if not kinds:
        return ["nothing to free"]
    lines = [
        f"{name or 'of no dataset'}: {found['objects']:,} objects, {size(found['bytes'])}"
        for name, found in told["datasets"].items()
    ]
    lines.append(f"{'freed' if deleted else 'would free'} {', '.join(kinds)}")
    return lines if deleted else [*lines, "nothing was removed; --delete does it"]
