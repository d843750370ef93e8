"""`tokenloom preview`: shows rows with what is trained and what is masked, without building anything."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tokenloom.cli.options import add_command, add_config, add_store, nonnegative_integer, open_store
from tokenloom.errors import DatasetNotFoundError, SourceError, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenloom.assets.building.build import Build
    from tokenloom.assets.shown_rows.token_runs import ShownRow


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    parser = add_command(commands, "preview", "show rows with what is trained and what is masked; builds nothing", run)
    add_config(parser, "a dataset")
    add_store(parser)
    text = "raw rows to show, counted from 0 (default: the first 3)"
    parser.add_argument("--row", metavar="N", type=nonnegative_integer, nargs="+", help=text)
    parser.add_argument("--html", metavar="FILE", help="write one HTML page, with the counts of the dataset, instead")
    text = "show the prompts that the model gets at inference, without the answers"
    parser.add_argument("--inference", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Show rows on the terminal or in an HTML page: as built if that is what the YAML and the source give now, else
    straight from the source. Builds nothing."""
    from rich.console import Console

    from tokenloom.assets.building.build import Build
    from tokenloom.assets.shown_rows.thumbnails import row_thumbnails
    from tokenloom.cli.page import Page, built_page, write_page
    from tokenloom.cli.tables import print_preview
    from tokenloom.cli.terminal import open_console, say
    from tokenloom.config import PipelineConfig
    from tokenloom.config.trained_kinds import weights_in_words

    config = PipelineConfig.from_file(args.config)
    build = Build(config, open_store(args, config.folder, read_only=True))
    rows, shown_as, stored, read_image = _shown_rows(build, args.row, args.inference)
    if isinstance(weights := config.prompt_template.train_on, dict):
        shown_as += f"; {weights_in_words(weights)}"
    say(open_console(stderr=True), f"{build.name}: {shown_as}")
    if args.html:
        page = Page(build.name, rows, shown_as, row_thumbnails(rows, read_image))
        write_page(args.html, built_page(page, build.store, build.stages) if stored else page)
        print(visible(f"wrote {args.html}", lines=False))
    else:
        print_preview(Console(), build.name, rows)
    return 0


def _shown_rows(
    build: Build, numbers: list[int] | None, inference: bool
) -> tuple[list[ShownRow], str, bool, Callable[[str], bytes]]:
    """Return the rows to show, where they are from, in words, whether that is the store, and what reads their images,
    given a digest."""
    from tokenloom.assets.building.explain import trained_tokenizer
    from tokenloom.assets.building.on_the_fly import with_tokenizer
    from tokenloom.starter.source_rows import SourceImages, source_rows

    stored, reason = (None, "prompts for inference") if inference else _stored_rows(build, numbers)
    if stored is not None:
        return stored, reason, True, build.store.media.read
    config, source = build.config, "straight from the source"
    if skipped := [name for name in ("decontaminate", "dedup") if getattr(config, name) is not None]:
        source += f", before {' and '.join(skipped)}"
    if folder := trained_tokenizer(build):
        config, source = with_tokenizer(config, folder), f"{source}, with the tokenizer of the last build"
    elif config.tokenizer.train is not None:
        source = f"text {source}, without tokens until a build trains the tokenizer"
    images = SourceImages(config)
    by_number = {row.row: row for row in source_rows(config, numbers, inference, images)}
    return [by_number[number] for number in numbers or by_number], f"{source} ({reason})", False, images.read


def _stored_rows(build: Build, numbers: list[int] | None) -> tuple[list[ShownRow] | None, str]:
    """Return the rows as built, and their version; or None, and why a build would give other rows now."""
    from tokenloom.assets.building.explain import outdated
    from tokenloom.assets.shown_rows.token_runs import RowReader
    from tokenloom.starter.source_rows import FIRST_ROWS

    try:
        reader = RowReader(build.store, build.name, build.stages)
    except DatasetNotFoundError:
        return None, f"{build.name} is not built yet"
    numbers = [*range(min(FIRST_ROWS, len(reader)))] if numbers is None else numbers
    shown_as = f"as built, version {reader.version[:8]}"
    if missing := [number for number in numbers if number >= len(reader)]:
        return None, f"the last build has no row {missing[0]}"
    try:
        reason = outdated(build, reader.reach(numbers))
    except SourceError as error:
        reason, shown_as = None, f"{shown_as}; the source cannot be read now: {error}"
    if reason is None and not reader.has_chunks(numbers):
        reason = "gc dropped the rows of the last build"
    return (None, reason) if reason else ([reader.read(number) for number in numbers], shown_as)
