"""`tokenloom inspect`: shows what a source contains, and writes a YAML to start from."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.cli.options import add_command, add_json, add_limit, add_store, check_file, open_store, write_file
from tokenloom.errors import ConfigError, DatasetNotFoundError, TokenloomError, escaped
from tokenloom.starter import STYLES

if TYPE_CHECKING:
    from rich.console import Console

    from tokenloom.config import MixtureConfig
    from tokenloom.starter.source_facts import Inspection


QUESTION = "Which one is right? (number, or Enter to choose in the YAML)"


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    parser = add_command(commands, "inspect", "show what a source contains, and write a YAML file to start from", run)
    text = "a file, folder, glob, URL or hub id; or the YAML file of a dataset or of a mixture"
    parser.add_argument("source", metavar="SOURCE", help=text)
    text = "tokenizer to set in the YAML (default: train one)"
    parser.add_argument("--tokenizer", metavar="TOKENIZER", help=text)
    text = (
        "how prompts and answers are rendered (default: as the tokenizer's chat template does, or what suits the data)"
    )
    parser.add_argument("--style", choices=tuple(STYLES), help=text)
    text = "YAML file to write, or - for stdout (default: named after SOURCE; none with --json or if SOURCE is a YAML)"
    parser.add_argument("--out", metavar="FILE", help=text)
    parser.add_argument("--force", action="store_true", help="overwrite an existing YAML file")
    parser.add_argument("--config", metavar="SUBSET", help="config of a hub dataset, or of a folder with a README.md")
    parser.add_argument("--revision", metavar="REVISION", help="hub revision: a branch, tag or commit")
    parser.add_argument("--split", metavar="SPLIT", help="only this split (default: all splits)")
    parser.add_argument("--root", metavar="PATH", help="path to the rows of nested JSON, e.g. data[].qas[]")
    add_limit(parser, "use only the first N rows of each split")
    add_store(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Profile the source, print its columns and likely formats, and write the YAML.

    With `--json`, or if SOURCE is already a YAML file, a YAML is written only if `--out` names one.
    """
    from rich.console import Console

    from tokenloom.assets.columns.unused import unused_notice
    from tokenloom.cli.tables import column_table, format_table, print_preview
    from tokenloom.cli.terminal import BuildProgress, open_console, say
    from tokenloom.config import MixtureConfig, PipelineConfig
    from tokenloom.config.dataset import load_config
    from tokenloom.config.yaml_file import is_yaml
    from tokenloom.starter.source_facts import dataset_name, inspect_source
    from tokenloom.starter.source_rows import rendered_row

    target = args.out
    args.source = escaped(args.source)
    if is_yaml(args.source) and isinstance(config := load_config(args.source), MixtureConfig):
        return _shares(args, config)
    if target is None and not args.json and not is_yaml(args.source):
        target = f"{dataset_name(args.source)}.yaml"
    if target is not None:
        check_file("--out", target, args.force, args.json)
    with BuildProgress(Console(stderr=True, quiet=not sys.stderr.isatty())) as progress:
        store = open_store(args, str(Path(target if target not in (None, "-") else args.source).parent))
        inspection = inspect_source(
            args.source, store, args.tokenizer, args.style, args.config, args.revision, args.split, args.root,
            args.limit, progress.chunk_done, progress.stage_done,
        )  # fmt: skip
    name, facts = inspection.config.dataset_name, inspection.facts
    console = open_console(stderr=args.json or target == "-", width=160)
    console.print(column_table(f"{name}: {inspection.counts()}", facts["columns"]))
    for line in inspection.findings():
        say(console, line)
    for report in inspection.reports:
        if report.rejected:
            say(console, f"{report.name} rejected {inspection.build.reject_reasons(report.name)}")
    console.print(format_table(facts["formats"]))
    say(console, inspection.verdict())
    unused, metadata = inspection.unused()
    if unused:
        say(console, f"Notice: {unused_notice(unused)}.")
    for question in inspection.questions():
        say(console, f"Question: {question}.")
    if metadata:
        say(console, f"Not used either, as metadata: {', '.join(metadata)}.")
    if args.json:
        print(json.dumps(inspection.report(), ensure_ascii=False))
    if target == "-":
        print(inspection.yaml(Path()), end="")
    elif target is not None:
        if not args.json and sys.stdin.isatty() and sys.stderr.isatty():
            inspection = _ask(inspection, Path(target))
        write_file("--out", target, inspection.yaml(Path(target).parent))
        next_step = f"build it with: tokenloom build {target}"
        if not inspection.is_sure:
            next_step = "make a choice in it, then build it"
        elif not args.json:
            try:
                if (shown := rendered_row(PipelineConfig.from_file(target), inspection.build)) is not None:
                    print_preview(console, name, [shown])
            except TokenloomError as error:
                next_step = f"it does not build yet: {error}"
        say(console, f"Wrote {target}; {next_step}")
    return 0


def _ask(inspection: Inspection, target: Path) -> Inspection:
    """Ask which of several readings is right, showing a row of each, and return the inspection with the chosen one;
    unchanged if there is none to choose.

    Args:
        target: the YAML that will be written.
    """
    from rich.console import Console
    from rich.prompt import Prompt

    from tokenloom.assets.schema.candidates import Ambiguity

    if inspection.refused is not None or not isinstance(inspection.choice, Ambiguity) or not inspection.choice.close:
        return inspection
    console = Console(stderr=True)
    chosen = [replace(inspection, choice=reading) for reading in inspection.choice.close]
    for number, one in enumerate(chosen, 1):
        _show(console, number, one, target)
    numbers = [str(number) for number in range(1, len(chosen) + 1)]
    try:
        answer = Prompt.ask(
            QUESTION, console=console, choices=[*numbers, ""], show_choices=False, default="", show_default=False
        )
    except EOFError:  # Ctrl-D
        answer = ""
    return chosen[int(answer) - 1] if answer else inspection


def _show(console: Console, number: int, one: Inspection, target: Path) -> None:
    from tokenloom.assets.schema.candidates import FormatCandidate
    from tokenloom.cli.tables import print_preview
    from tokenloom.cli.terminal import say
    from tokenloom.config import PipelineConfig
    from tokenloom.config.dataset import parse_config
    from tokenloom.starter.source_rows import rendered_row

    reading = one.choice
    assert isinstance(reading, FormatCandidate)
    say(console, f"{number}: {reading.format}, {', '.join(f'{role}: {text}' for role, text in reading.roles.items())}")
    try:
        config = parse_config(one.yaml(target.parent), target)
        assert isinstance(config, PipelineConfig)
        if (row := rendered_row(config, one.build)) is not None:
            print_preview(console, config.dataset_name, [row])
    except TokenloomError as error:
        for line in str(error).split("\n"):
            say(console, line)


def _shares(args: argparse.Namespace, config: MixtureConfig) -> int:
    """Print what each dataset of a mixture contributes to an epoch, of the datasets as they are in the store."""
    from tokenloom.assets.building.target import find_members
    from tokenloom.cli.tables import share_table
    from tokenloom.cli.terminal import open_console, say
    from tokenloom.loaders import MixedDataset, TokenDataset, open_dataset

    if args.out is not None:
        raise ConfigError.at("--out", "inspect writes no YAML for a mixture; omit it")
    store = open_store(args, config.folder)
    find_members(config, store.datasets)
    built, missing = dict[str, TokenDataset](), list[str]()
    for name in config.names:
        try:
            built[name] = open_dataset(name, args.split or "train", store=store.address)
        except DatasetNotFoundError:
            missing.append(name)
    console, mixed = open_console(stderr=args.json, width=160), None
    if missing:
        weights = ", ".join(f"{source.dataset}: {source.weight}" for source in config.mixture)
        say(console, f"{config.dataset_name}: a mixture by {config.by} of {weights}")
        say(console, f"The shares are known once all are built; not built: {', '.join(missing)}.")
    else:
        weights = {each.dataset: each.number for each in config.mixture}
        epochs = {each.dataset: each.epochs for each in config.mixture if each.epochs is not None}
        try:
            mixed = MixedDataset(built, weights, config.by, epochs)
        except ValueError as error:
            raise config.fault("mixture", f"mixture: {error}") from None
        console.print(share_table(config.dataset_name, None, mixed))
    if config.unweighted:
        say(console, f"Notice: {config.unweighted}.")
    if args.json:
        shares = [asdict(share) for share in mixed.shares()] if mixed else None
        print(json.dumps({"mixture": config.dataset_name, "by": config.by, "shares": shares, "not_built": missing}))
    return 0
