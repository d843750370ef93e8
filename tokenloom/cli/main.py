"""The terminal's front door: `tokenloom inspect`, `build`, `explain`, `preview`, `versions`, `diff`, `trace`, `export`,
`verify`, `gc` and `schema`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence

from tokenloom.cli.visible import visible
from tokenloom.config import PipelineConfig
from tokenloom.config import MixtureConfig
from tokenloom.errors import ConfigError, Fault, TokenloomError

EXIT_CODES = (
    "exit codes: 0 done; 2 the config or the command is wrong; 3 the data failed validation; "
    "4 the store is damaged; 1 anything else"
)

MIXED = ", or a mixture's"

STORE_HELP = "a folder, or s3://bucket/prefix; default: $TOKENLOOM_STORE, else .tokenloom"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parsed = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = parsed.command
    try:
        return command(parsed)
    except ConfigError as error:
        print(visible(str(error)), file=sys.stderr)
        return error.exit_code
    except TokenloomError as error:
        print(visible(f"error: {error}"), file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("tokenloom"):
            raise
        print(f"error: {error.name} is not installed: pip install 'tokenloom[pipeline]' brings it", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; finished chunks are kept, the next build goes on from there", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  # the reader left; nothing more to say at exit
        return 0
    except OSError as error:
        print(f"error: {error.strerror or error}", file=sys.stderr)
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  # what is still buffered cannot be written either
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tokenloom", description="From raw text datasets to training batches.", epilog=EXIT_CODES
    )
    parser.add_argument("--version", action="version", version=f"tokenloom {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    inspect = commands.add_parser(
        "inspect", help="show what is in a source, and write a YAML to start from", epilog=EXIT_CODES
    )
    inspect.add_argument("source", metavar="SOURCE", help="a file, folder, glob, URL or hub id; or a dataset's YAML")
    inspect.add_argument("--tokenizer", metavar="T", help="name this tokenizer in the YAML; default: train one")
    inspect.add_argument("--out", metavar="FILE", help="the YAML to write, - for stdout; default: SOURCE's stem here")
    inspect.add_argument("--force", action="store_true", help="overwrite the YAML where it exists")
    inspect.add_argument("--config", metavar="SUBSET", help="hub subset")
    inspect.add_argument("--revision", metavar="R", help="hub revision")
    inspect.add_argument("--split", metavar="S", help="only this split")
    inspect.add_argument("--root", metavar="PATH", help="nested JSON: the path to the rows, e.g. data[].qas[]")
    inspect.add_argument("--limit", metavar="N", type=_positive, help="only the first N rows of each split")
    inspect.add_argument("--store", metavar="STORE", help=STORE_HELP)
    inspect.add_argument(
        "--json", action="store_true", help="print the facts as one JSON object; no YAML without --out"
    )
    inspect.set_defaults(command=_inspect)

    build = commands.add_parser("build", help="make a dataset, computing only what changed", epilog=EXIT_CODES)
    _common(build, MIXED)
    build.add_argument("--stage", metavar="S", help="stop after this stage")
    build.add_argument("--json", action="store_true", help="print one JSON object on stdout, everything else on stderr")
    build.set_defaults(command=_build)

    explain = commands.add_parser(
        "explain", help="say what a build would compute, and why; computes nothing", epilog=EXIT_CODES
    )
    explain.add_argument("config", metavar="CONFIG", help=f"the dataset's YAML{MIXED}")
    explain.add_argument("--limit", metavar="N", type=_positive, help="of the build with this --limit")
    explain.add_argument("--store", metavar="STORE", help=STORE_HELP)
    explain.add_argument(
        "--json", action="store_true", help="print one JSON object on stdout, everything else on stderr"
    )
    explain.set_defaults(command=_explain)

    preview = commands.add_parser(
        "preview", help="show rows with trained and masked tokens in colour", epilog=EXIT_CODES
    )
    _common(preview)
    preview.add_argument(
        "--row", metavar="N", type=int, nargs="+", help="raw rows to show, counted from 0; default: the first 3"
    )
    preview.add_argument("--html", metavar="FILE", help="write one self-contained page instead")
    preview.add_argument(
        "--inference", action="store_true", help="show the prompts that the model is given when it is to answer"
    )
    preview.set_defaults(command=_preview)

    versions = commands.add_parser("versions", help="list every state in which a dataset was built", epilog=EXIT_CODES)
    versions.add_argument("dataset", metavar="NAME|CONFIG", help="a dataset's name, or its YAML")
    versions.add_argument("--store", metavar="STORE", help=STORE_HELP)
    versions.add_argument("--json", action="store_true", help="print one JSON object")
    versions.set_defaults(command=_versions)

    diff = commands.add_parser("diff", help="tell what differs between two datasets or versions", epilog=EXIT_CODES)
    diff.add_argument("a", metavar="A", help="a dataset's name, or name@version: the begin of a digest, or a date")
    diff.add_argument("b", metavar="B", help="the same; what only B holds is told as added")
    diff.add_argument("--store", metavar="STORE", help=STORE_HELP)
    diff.add_argument("--json", action="store_true", help="print one JSON object")
    diff.set_defaults(command=_diff)

    trace = commands.add_parser("trace", help="name the raw rows of a batch", epilog=EXIT_CODES)
    trace.add_argument("config", metavar="CONFIG", help=f"the dataset's YAML{MIXED}")
    trace.add_argument("--step", metavar="N", type=_number, required=True, help="counted from 0 on through epochs")
    trace.add_argument("--split", metavar="S", default="train", help="default: train")
    trace.add_argument("--rank", metavar="R", type=_number, help="only this rank; default: all")
    trace.add_argument("--world-size", metavar="W", type=_positive, default=1, help="ranks; default: 1")
    trace.add_argument("--store", metavar="STORE", help=STORE_HELP)
    trace.add_argument("--json", action="store_true", help="print one JSON object")
    trace.set_defaults(command=_trace)

    export = commands.add_parser(
        "export", help="write a dataset's rows for other libraries, building what is missing", epilog=EXIT_CODES
    )
    _common(export, MIXED)
    export.add_argument("folder", metavar="DIR", help="the folder to write; it appears when it is whole")
    export.add_argument(
        "--to", choices=("hf", "parquet"), required=True, help="what datasets.load_from_disk loads, or Parquet files"
    )
    export.add_argument("--split", metavar="S", help="only this split; default: all")
    export.add_argument("--overwrite", action="store_true", help="replace an earlier export in DIR")
    export.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    export.set_defaults(command=_export)

    verify = commands.add_parser(
        "verify", help="reread what is stored, and find what is damaged or missing", epilog=EXIT_CODES
    )
    verify.add_argument("target", metavar="CONFIG|NAME", nargs="?", help="a dataset or mixture; default: all")
    verify.add_argument("--store", metavar="STORE", help=STORE_HELP)
    verify.add_argument(
        "--keep-damaged", action="store_true", help="only report; default: remove it, so that a build makes it anew"
    )
    verify.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    verify.set_defaults(command=_verify)

    gc = commands.add_parser("gc", help="show what no dataset needs any more, or remove it", epilog=EXIT_CODES)
    gc.add_argument("--store", metavar="STORE", help=STORE_HELP)
    gc.add_argument("--keep", metavar="N", type=_positive, default=3, help="latest states of each dataset; default: 3")
    gc.add_argument(
        "--older-than",
        metavar="AGE",
        default="1d",
        help="leave what is younger, such as 12h; below 1d only while nothing builds; default: 1d",
    )
    gc.add_argument("--delete", action="store_true", help="remove it; default: only say what would go")
    gc.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    gc.set_defaults(command=_gc)

    schema = commands.add_parser("schema", help="print the JSON Schema of the YAML")
    schema.set_defaults(command=_schema)
    return parser


def _common(parser: argparse.ArgumentParser, more: str = "") -> None:
    parser.add_argument("config", metavar="CONFIG", help=f"the dataset's YAML{more}")
    parser.add_argument("--store", metavar="STORE", help=STORE_HELP)
    parser.add_argument(
        "--limit", metavar="N", type=_positive, help="only the first N rows of each split, published as NAME@N"
    )
    parser.add_argument(
        "--workers", metavar="N", type=_positive, help="chunks computed at a time; default: compute.workers"
    )
    parser.add_argument("--engine", choices=("local", "ray"), help="default: compute.engine")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _version() -> str:
    from importlib import metadata

    return metadata.version("tokenloom")


def _inspect(parsed: argparse.Namespace) -> int:
    from tokenloom.cli.inspect import run_inspect

    return run_inspect(parsed)


def _build(parsed: argparse.Namespace) -> int:
    from tokenloom.cli.build import run_build

    return run_build(parsed)


def _explain(parsed: argparse.Namespace) -> int:
    from tokenloom.cli.explain import run_explain

    return run_explain(parsed.config, parsed.store, parsed.limit, parsed.json)


def _preview(parsed: argparse.Namespace) -> int:
    from rich.console import Console

    from tokenloom.cli.build import build_dataset
    from tokenloom.cli.output_file import write_file
    from tokenloom.cli.preview_page import html_preview, print_preview
    from tokenloom.cli.token_runs import RowReader

    config = PipelineConfig.from_file(parsed.config)
    build, _ = build_dataset(parsed, config, Console(stderr=True, quiet=not sys.stderr.isatty()))
    reader = RowReader(build.store, build.name)
    wanted = parsed.row if parsed.row is not None else range(min(3, len(reader)))
    if outside := [row for row in wanted if not 0 <= row < len(reader)]:
        raise ConfigError(
            [Fault("--row", f"{outside[0]} is outside of the {len(reader)} rows, 0 to {len(reader) - 1}")]
        )
    build.restore(build.manifest("raw"), reader.raw_outputs(wanted, parsed.inference))
    rows = list(reader.read_prompts(build.config, wanted)) if parsed.inference else [reader.read(row) for row in wanted]
    if parsed.html:
        write_file("--html", parsed.html, html_preview(build.name, rows))
        print(f"wrote {parsed.html}")
    else:
        print_preview(Console(), build.name, rows)
    return 0


def _versions(parsed: argparse.Namespace) -> int:
    from tokenloom.cli.versions import run_versions

    return run_versions(parsed.dataset, parsed.store, parsed.json)


def _diff(parsed: argparse.Namespace) -> int:
    from tokenloom.cli.diff import run_diff

    return run_diff(parsed.a, parsed.b, parsed.store, parsed.json)


def _trace(parsed: argparse.Namespace) -> int:
    from tokenloom.cli.trace import print_trace
    from tokenloom.loaders import TokenLoader
    from tokenloom.pipeline import DataPipeline

    ranks, world = [parsed.rank] if parsed.rank is not None else range(parsed.world_size), parsed.world_size
    if ranks[-1] >= world:
        raise ConfigError([Fault("--rank", f"{parsed.rank} is not one of --world-size {world}")])
    pipeline = DataPipeline.from_config(parsed.config, parsed.store).unwrap()
    loader = pipeline.get_dataloader(parsed.split, rank=ranks[0], world_size=world).unwrap()
    if not isinstance(loader, TokenLoader):
        message = "dataset.streaming: a stream's batches cannot be traced; set it to false"
        raise pipeline.config.fault("dataset.streaming", message)
    print_trace({rank: loader.trace(parsed.step, rank) for rank in ranks}, parsed.step, world, parsed.json)
    return 0


def _export(parsed: argparse.Namespace) -> int:
    from tokenloom.cli.export import run_export

    return run_export(parsed)


def _verify(parsed: argparse.Namespace) -> int:
    from tokenloom.cli.verify import run_verify

    return run_verify(parsed.target, parsed.store, parsed.keep_damaged, parsed.json)


def _gc(parsed: argparse.Namespace) -> int:
    from tokenloom.cli.gc import run_gc

    return run_gc(parsed.store, parsed.keep, parsed.older_than, parsed.delete, parsed.json)


def _schema(parsed: argparse.Namespace) -> int:
    from pydantic import TypeAdapter

    print(json.dumps(TypeAdapter(PipelineConfig | MixtureConfig).json_schema(), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
