"""The `tokenloom` command: assembles the subcommands and maps errors to exit codes."""

from __future__ import annotations

import argparse
import atexit
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from gc import set_threshold
from importlib import import_module
from typing import Any, NoReturn

from tokenloom.cli.options import EXIT_CODES
from tokenloom.errors import ConfigError, TokenloomError, did_you_mean, missing_package, redacted, visible

COMMANDS = (
    "inspect", "import_config", "check", "build", "explain", "preview", "dropped", "versions", "diff", "trace", "train",
    "export", "push", "verify", "pin", "remove", "gc", "templates", "schema",
)  # fmt: skip
"""The modules of the commands, in the order of `--help`."""

UNREAD = 128 + 13
"""Exit code if nobody reads the output, as of a program that ends by SIGPIPE."""


def run() -> NoReturn:
    """Run one command and exit. Large objects are not freed one by one: the system takes them back at once."""
    set_threshold(100_000)  # few objects of a command die in cycles, and imports make many that live
    _open_streams()
    try:
        code = main()
    except SystemExit as end:  # of argparse; of rich, if nobody reads the output
        code = UNREAD if isinstance(end.__context__, BrokenPipeError) else int(end.code or 0)
    except OSError as error:
        code = _unwritten(error)
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            code = code or _unwritten(error)
    os._exit(code)


def _open_streams() -> None:
    """Open streams that are closed, so that no other file gets their number: writing to stdout fails, to stderr not."""
    modes = {"stdin": os.O_RDONLY, "stdout": os.O_RDONLY, "stderr": os.O_WRONLY}
    for number, (name, flags) in enumerate(modes.items()):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, flags), number)
            setattr(sys, name, open(number, "w" if number else "r"))  # noqa: PTH123, SIM115


def _unwritten(error: OSError) -> int:
    """Return the exit code of a command whose output cannot be written, and say so unless nobody reads it."""
    if isinstance(error, BrokenPipeError):
        return UNREAD
    with suppress(OSError):
        print(f"error: the output cannot be written: {error.strerror or error}", file=sys.stderr, flush=True)
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: default: those of the process.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _Parser(prog="tokenloom", description="Turn raw text datasets into training batches.", epilog=EXIT_CODES)
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in COMMANDS:
        import_module(f"tokenloom.cli.{name}").add_parser(commands)
    named = next((argument for argument in arguments if not argument.startswith("-")), None)
    if named is not None and named not in commands.choices:
        hint = did_you_mean(named, commands.choices) or f"; the commands are {', '.join(commands.choices)}"
        parser.error(f"unknown command {named!r}{hint}")
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        command = commands.choices[named] if named else parser
        known = [option for action in command._actions for option in action.option_strings]  # pyright: ignore[reportPrivateUsage]
        command.error(f"unknown argument {unknown[0]!r}{did_you_mean(unknown[0].partition('=')[0], known)}")
    if named is None:
        parser.print_help(sys.stderr)
        return ConfigError.exit_code
    _keep_pandas_out()
    return _exit_code(args)


def _keep_pandas_out() -> None:
    """Let pyarrow look for pandas now, and not find it: importing it takes longer than a small build.

    pyarrow looks when it first converts a list, and again whenever a function needs pandas.
    """
    if "pandas" in sys.modules or importlib.util.find_spec("pyarrow") is None:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        import pyarrow as pa

        pa.array([])
    finally:
        sys.meta_path.remove(_NoPandas)


class _NoPandas:
    @classmethod
    def find_spec(cls, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def _exit_code(args: argparse.Namespace) -> int:
    try:
        return args.run(args)
    except TokenloomError as error:
        # Each line of a config's faults starts with its own place, as compilers print it.
        print(error if isinstance(error, ConfigError) else f"error: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("tokenloom"):
            raise
        print(f"error: {missing_package(error.name, 'the command')}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        text = "interrupted; finished chunks are kept, and the next build continues from there"
        print(str(error) or text, file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  # the reader is gone: nothing to flush at exit
        return UNREAD
    except OSError as error:
        print(redacted(visible(f"error: {error.strerror or error}", lines=False)), file=sys.stderr)
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  # buffered output cannot be written either
        return 1
    except MemoryError as error:
        reason = f": {redacted(str(error))}" if str(error) else ""
        remedy = "set compute.workers lower, or use a machine with more"
        print(f"error: not enough memory{reason}; {remedy}", file=sys.stderr)
        return 1
    except Exception:  # a bug; messages of other libraries can contain URLs with credentials
        print(redacted(visible(traceback.format_exc())), file=sys.stderr)
        return 1


class _Parser(argparse.ArgumentParser):
    def _print_message(self, message: str, file: Any = None) -> None:
        print(visible(message), end="", file=file or sys.stderr)  # argparse ignores that it cannot be written


class _PrintVersion(argparse.Action):
    """Print the installed version; reading it takes time that other commands need not spend."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib import metadata

        print(f"tokenloom {metadata.version('tokenloom')}")
        parser.exit()
