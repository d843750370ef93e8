"""`tokenloom dropped`: lists the rows that a build dropped, or reported: items of evaluations, and repeated rows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tokenloom.cli.options import add_command, add_config, add_json, add_store, open_store, positive_integer
from tokenloom.errors import ConfigError

if TYPE_CHECKING:
    from tokenloom.config import PipelineConfig
    from tokenloom.resources.store import ArtifactStore

_SHOWN, _REPEATS = 20, 5
"""Rows listed of each evaluation, or kept rows; and rows listed that repeat one."""
Say = Callable[[str], None]
Records = list[dict[str, Any]]


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    text = (
        "list the rows that contain items of evaluations or repeat others, each with the item or the row that is kept"
    )
    parser = add_command(commands, "dropped", text, run)
    add_config(parser, "a dataset")
    add_store(parser)
    parser.add_argument("--stage", choices=("decontaminate", "dedup"), help="list only what this stage dropped")
    text = "list only repeated rows with a similarity from LOW to HIGH"
    parser.add_argument("--between", metavar=("LOW", "HIGH"), type=float, nargs=2, help=text)
    text = f"rows of each evaluation, or kept rows, to list (default: {_SHOWN}); those with most to see come first"
    parser.add_argument("--rows", metavar="N", type=positive_integer, default=_SHOWN, help=text)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print which rows of the last build were dropped, and for what."""
    from tokenloom.cli.terminal import open_console, say
    from tokenloom.config import PipelineConfig

    config = PipelineConfig.from_file(args.config)
    store = open_store(args, config.folder, read_only=True)
    wanted = [args.stage] if args.stage else ["dedup"] if args.between else [*_LISTS]
    _check_between(args)
    stages = [name for name in wanted if getattr(config, name) is not None]
    if not stages:
        message = f"this YAML has no section {' or '.join(wanted)}, so no rows are dropped; add one, and build"
        raise config.fault(wanted[0], message)
    console = open_console(width=160)
    listed: dict[str, Any] = {"dataset": config.dataset_name}
    for name in stages:
        listed[name] = _LISTS[name](store, config, args, lambda line: say(console, line))
    if args.json:
        print(json.dumps(listed, ensure_ascii=False))
    return 0


def _check_between(args: argparse.Namespace) -> None:
    """
    Raises:
        ConfigError: `--between` has no effect, or no similarity lies between its ends.
    """
    if args.between and args.stage == "decontaminate":
        raise ConfigError.at("--between", "is for repeated rows; omit it, or use --stage dedup")
    if args.between and args.between[0] > args.between[1]:
        raise ConfigError.at("--between", "{:g} is more than {:g}; write the smaller one first".format(*args.between))


def _contaminated(store: ArtifactStore, config: PipelineConfig, args: argparse.Namespace, say: Say) -> Records:
    """List the rows with items of each evaluation, those that contain most of an item first."""
    from tokenloom.assets.decontaminate.stage import share_of
    from tokenloom.assets.stage.names import DECONTAMINATE
    from tokenloom.assets.stage.rejects import ROW

    manifest = store.manifest(config.dataset_name, DECONTAMINATE)
    found = [
        {
            "place": chunk.place(record[ROW]),
            "split": chunk.split,
            "code": record["code"],
            "evaluation": record["field"],
            "message": record["message"],
            "share": share_of(record["message"]),
            "passage": record["excerpt"],
        }
        for chunk in manifest.chunks
        for record in (store.objects.get_intact(chunk.rejects).to_pylist() if chunk.rejects else ())
    ]
    for described in [] if args.json else manifest.notes["evaluations"]:
        own = [record for record in found if record["evaluation"] == described["evaluation"]]
        counted = f"{len(own):,} of {manifest.total('rows_in'):,} rows contain one of its {described['items']:,} items"
        say(f"{described['evaluation']}: {counted}")
        own.sort(key=lambda record: -record["share"])
        _list(say, [f"{record['place']} {record['message']}: {record['passage']}" for record in own], args.rows)
    return found


def _repeated(store: ArtifactStore, config: PipelineConfig, args: argparse.Namespace, say: Say) -> Records:
    """List the kept rows that others repeat, with these rows; those that most others repeat first."""
    from tokenloom.assets.dedup.stage import groups
    from tokenloom.assets.stage.names import DEDUP

    manifest = store.manifest(config.dataset_name, DEDUP)
    against = config.dedup.against if config.dedup else ()
    low, high = args.between or (0.0, 1.0)
    found = [
        {"kept": group.kept, "split": group.split, "dropped": repeats}
        for group in groups(store, config.dataset_name, against)
        if (repeats := [vars(repeat) for repeat in group.repeats if low <= repeat.similarity <= high])
    ]
    if args.json:
        return found
    rows = sum(len(group["dropped"]) for group in found)
    say(f"dedup: {rows:,} of {manifest.total('rows_in'):,} rows repeat {len(found):,} others")
    for group in found[: args.rows]:
        say(f"  {group['kept']} is kept, of {group['split']}; {len(group['dropped']):,} repeat it:")
        lines = [f"  {row['place']} {row['similarity']:.0%}: {row['start']}" for row in group["dropped"]]
        _list(say, lines, _REPEATS, "--json")
    if (more := len(found) - args.rows) > 0:
        say(f"  and {more:,} more kept rows (--rows, --json)")
    return found


_LISTS = {"decontaminate": _contaminated, "dedup": _repeated}


def _list(say: Say, lines: Sequence[str], most: int, remedy: str = "--rows, --json") -> None:
    for line in lines[:most]:
        say(f"  {line}")
    if (more := len(lines) - most) > 0:
        say(f"  and {more:,} more ({remedy})")
