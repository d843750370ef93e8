"""Exception types, and `Result` for callers who prefer return values to exceptions.

Every exception carries the exit code of the command line: 2 for a wrong config or command, 3 for data that failed
validation, 4 for a damaged store, 1 for anything else.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NoReturn, TypeVar, Union

LONGEST_NAME = 200
"""Most characters of a name that is compared with known ones, which takes time by the square of its length."""

T = TypeVar("T")
U = TypeVar("U")
E = TypeVar("E")
F = TypeVar("F")


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return `"; did you mean x?"` for the known name most similar to the given one, or `""` if none is similar."""
    close = difflib.get_close_matches(given, list(known), n=1) if len(given) <= LONGEST_NAME else []
    return f"; did you mean {close[0]}?" if close else ""


def escaped(name: str) -> str:
    r"""Return a file name or path with bytes that are not UTF-8, which Python holds as surrogates, as `\xe9`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


HARMLESS = "\n\t\u200c\u200d"
"""Printed unescaped although not printable: line breaks, tabs, and the joiners in emoji and Indic words."""


def visible(text: str, lines: bool = True) -> str:
    r"""Return a text with control characters written like `\u001b`, so that data cannot control the terminal.

    Args:
        lines: whether it can have several lines. Otherwise, line breaks are written as `\n`: no name begins a line.
    """
    if not text.isprintable():
        text = "".join(char if char in HARMLESS or char.isprintable() else f"\\u{ord(char):04x}" for char in text)
    return text if lines else text.replace("\n", "\\n")


LONGEST_LINE, MOST_LINES = 2000, 60
"""Most characters of a line of a message, and most lines of a message: names and lists of names can be any length."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,63}:/{1,2}[^\s'\"<>]*")  # bounded, so that long words take linear time
_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+:/{1,2})(.*)", re.DOTALL)
"""Protocol and rest; `pathlib.Path` turns `//` into `/`."""

_HOST = re.compile(r"[^:@]*(?::\d*)?|arn:.*")


def redacted(text: str) -> str:
    """Return a text with the credentials of all its URLs replaced by `…`: user names, passwords, queries, fragments."""
    return _URL.sub(lambda url: redacted_address(url[0]), text) if ":/" in text else text


def redacted_address(address: str) -> str:
    """Return a path or URL, also a chained one of fsspec, with its credentials replaced by `…`."""
    return "::".join(map(_redacted_part, address.split("::"))) if ":/" in address else address


def names_credentials(url: str) -> bool:
    """Return whether a URL has a user name or password, also one with a slash, as AWS keys can have."""
    parts = _PARTS.fullmatch(url)
    return parts is not None and not _HOST.fullmatch(parts[2].partition("/")[0])


def _redacted_part(url: str) -> str:
    parts = _PARTS.fullmatch(url)
    if parts is None:
        return url
    rest = parts[2]
    if names_credentials(url):
        first, slash, path = rest.partition("/")
        if "@" in first:
            rest = f"…@{first.rpartition('@')[2]}{slash}{path}"
        else:  # a password with a slash
            rest = f"…@{rest.rpartition('@')[2]}" if "@" in rest else "…"
    for mark in "?#":
        path, found, _ = rest.partition(mark)
        rest = f"{path}{found}…" if found else path
    return f"{parts[1]}{rest}"


def shortened(message: str) -> str:
    """Return a message of at most `MOST_LINES` lines of at most `LONGEST_LINE` characters; `…` replaces the middle of
    longer lines."""
    if len(message) <= LONGEST_LINE and message.count("\n") < MOST_LINES:
        return message
    lines = message.split("\n")
    if len(lines) > MOST_LINES:
        lines[MOST_LINES - 1 :] = [f"… and {len(lines) - MOST_LINES + 1:,} more lines"]
    half = LONGEST_LINE // 2 - 2
    return "\n".join(line if len(line) <= LONGEST_LINE else f"{line[:half]} … {line[-half:]}" for line in lines)


class TokenloomError(Exception):
    """Base class of all errors that tokenloom raises on purpose. Its message shows no credentials of URLs, is `visible`
    on one line unless it has `lines`, and is `shortened`."""

    exit_code: ClassVar[int] = 1
    is_outage: bool = False
    """Whether the same can succeed later with nothing changed by the user: something was away."""

    def __init__(self, message: str = "", lines: bool = False):
        super().__init__(shortened(redacted(visible(message, lines))))


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a config or a command: where, what, and what to do.

    `place` is "file:line" if the line is known, else the file, the setting's dotted path, or the option.
    """

    place: str
    message: str

    def __post_init__(self) -> None:
        for name in ("place", "message"):
            object.__setattr__(self, name, redacted(visible(getattr(self, name), lines=False)))

    def __str__(self) -> str:
        # The place of a setting that did not come from a file is its name, which the message starts with.
        return self.message if self.message.startswith(f"{self.place}:") else f"{self.place}: {self.message}"


class ConfigError(TokenloomError):
    """The YAML, a file that it names, or the command is wrong. `faults` lists every fault found, in file order."""

    exit_code = 2

    def __init__(self, faults: Sequence[Fault] | str):
        """`faults` is text when a `DataLoader` re-raises the error of a worker process."""
        self.faults: tuple[Fault, ...] = () if isinstance(faults, str) else tuple(faults)
        super().__init__(faults if isinstance(faults, str) else "\n".join(map(str, self.faults)), lines=True)

    @classmethod
    def at(cls, place: str, message: str) -> ConfigError:
        """Return an error with one fault.

        Args:
            place: "file:line", a file, a setting or an option.
            message: what is wrong, and what to do about it.
        """
        return cls([Fault(place, message)])

    def __reduce__(self) -> tuple[Any, ...]:
        return ConfigError, (self.faults or str(self),)


class SourceError(TokenloomError):
    """A data file or hub dataset exists but cannot be read. The message names it and the position."""

    exit_code = 3


class SourceUnavailableError(TokenloomError):
    """A remote source (a hub, a URL) did not respond."""

    is_outage = True


class SourceRefusedError(SourceUnavailableError):
    """A remote source refuses access, or access to it is switched off."""

    is_outage = False


class TokenizerError(TokenloomError):
    """The tokenizer cannot be loaded, or lacks something that the config needs."""

    exit_code = 2


class TemplateError(TokenloomError):
    """A prompt or chat template is refused: for its syntax, by the sandbox, or because it raises an error itself.

    `line` is the line in the template, counted from 1, or None if unknown.
    """

    exit_code = 2

    def __init__(self, message: str, line: int | None = None):
        super().__init__(message)
        self.line = line


class SandboxError(TemplateError):
    """A template accesses something other than data, or does too much work for its data."""


class DeadlineError(TokenloomError):
    """One row takes far longer than the work that is counted for it allows. Nothing is stored for its chunk.

    `row` is the row's position in its chunk, or None if unknown.
    """

    row: int | None = None

    def at(self, place: str) -> DeadlineError:
        """Return the error with the place of the row in the source."""
        return DeadlineError(f"{place}: {self}")


class DataValidationError(TokenloomError):
    """A stage's output violates its contract, or too many rows were rejected."""

    exit_code = 3


class RejectedRowsError(DataValidationError):
    """A stage rejected too many rows, or has none left.

    `manifest` is the stage's output, which is not published: a `Manifest`, or None in another process.
    """

    def __init__(self, message: str, stage: str = "", manifest: Any = None):
        super().__init__(message)
        self.stage, self.manifest = stage, manifest


class StoreError(TokenloomError):
    """An object, action or manifest of the store is missing or damaged."""

    exit_code = 4


class DamagedObjectError(StoreError):
    """An object's bytes do not match the digest in its name."""


class RemovedObjectError(StoreError):
    """An object was damaged and has been removed; the next build computes it again. `digest` is its name."""

    digest: str = ""

    @classmethod
    def of(cls, digest: str, problem: str = "") -> RemovedObjectError:
        """Return the error about an object; `problem` says what is wrong with its content."""
        found = f" ({problem})" if problem else ""
        error = cls(f"object {digest} was damaged{found} and has been removed; build again to recompute it")
        error.digest = digest
        return error


class StoreUnavailableError(StoreError):
    """The store's folder or bucket cannot be reached, read or written. The stored data can still be intact."""

    exit_code = 1
    is_outage = True


class StoreRefusedError(StoreUnavailableError):
    """The store's folder or bucket refuses to read or write until its owner changes something: space, access."""

    is_outage = False


class StoreAddressError(StoreError):
    """This version cannot open the store's address."""

    exit_code = 2


class ClusterError(TokenloomError):
    """A machine of a cluster cannot run chunks, or a chunk failed there on every try. The message names it."""


class ClusterUnavailableError(ClusterError):
    """A cluster did not respond, or connections to it broke off."""

    is_outage = True


class LoaderStateError(TokenloomError):
    """A loader's state is damaged, or belongs to other data, another order or another plan."""

    exit_code = 2


class MixtureEndedError(TokenloomError):
    """All datasets of a mixture have reached their `epochs`, so it has no more rows."""

    exit_code = 2


class TrainingStoppedError(TokenloomError):
    """A signal ended a training before its end. It can be resumed; the message says from which step."""


class DatasetNotFoundError(StoreError):
    """The store holds no such dataset, split or stage. The message lists what it holds."""

    exit_code = 2


class PinnedError(StoreError):
    """A training run pins what is to be removed. The message names the run."""

    exit_code = 2


@dataclass(frozen=True)
class Ok(Generic[T]):
    """Success, with a value."""

    value: T

    def is_ok(self) -> bool:
        """Return True."""
        return True

    def is_err(self) -> bool:
        """Return False."""
        return False

    def unwrap(self) -> T:
        """Return the value."""
        return self.value

    def unwrap_err(self) -> NoReturn:
        """Raise ValueError, because a success has no error."""
        raise ValueError(f"unwrap_err on a success: {self.value!r}")

    def unwrap_or(self, default: Any) -> T:
        """Return the value."""
        return self.value

    def map(self, function: Callable[[T], U]) -> Ok[U]:
        """Return a success with `function(value)`."""
        return Ok(function(self.value))

    def map_err(self, function: Callable[[Any], Any]) -> Ok[T]:
        """Return this result."""
        return self

    def and_then(self, function: Callable[[T], Result[U, E]]) -> Result[U, E]:
        """Return `function(value)`, which must be a `Result`."""
        return function(self.value)


@dataclass(frozen=True)
class Err(Generic[E]):
    """Failure, with the error."""

    error: E

    def is_ok(self) -> bool:
        """Return False."""
        return False

    def is_err(self) -> bool:
        """Return True."""
        return True

    def unwrap(self) -> NoReturn:
        """Raise the error."""
        if isinstance(self.error, BaseException):
            raise self.error
        raise ValueError(f"unwrap on a failure: {self.error!r}")

    def unwrap_err(self) -> E:
        """Return the error."""
        return self.error

    def unwrap_or(self, default: T) -> T:
        """Return `default`."""
        return default

    def map(self, function: Callable[[Any], Any]) -> Err[E]:
        """Return this result."""
        return self

    def map_err(self, function: Callable[[E], F]) -> Err[F]:
        """Return a failure with `function(error)`."""
        return Err(function(self.error))

    def and_then(self, function: Callable[[Any], Any]) -> Err[E]:
        """Return this result."""
        return self


Result = Union[Ok[T], Err[E]]


def attempt(function: Callable[[], T]) -> Result[T, TokenloomError]:
    """Call `function`. A `TokenloomError` becomes an `Err`; other exceptions propagate."""
    try:
        return Ok(function())
    except TokenloomError as error:
        return Err(error)


EXTRAS = {
    "pipeline": (
        *("awkward", "charset_normalizer", "dagster", "dagster_webserver", "datasets", "fsspec", "gigatoken"),
        *("huggingface_hub", "jinja2", "msgspec", "pandera", "rapidfuzz", "rich", "tokenizers", "transformers"),
    ),
    "ray": ("ray",),
    "s3": ("s3fs",),
    "train": ("accelerate", "lightning", "peft", "pytorch_optimizer", "safetensors", "transformers", "trl"),
    "jax": ("jax",),
    "vision": ("PIL",),
}
"""Modules that each extra of tokenloom installs."""


def install_command(module: str) -> str:
    """Return the command that installs a module: the extra that holds it, or its package."""
    package = module.partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if package in modules), None)
    return f"pip install 'tokenloom[{extra}]'" if extra else f"pip install {package.replace('_', '-')}"


def missing_package(module: str, purpose: str) -> ModuleNotFoundError:
    """Return the error for a module that is not installed.

    Args:
        purpose: what needs it.
    """
    package = module.partition(".")[0]
    message = f"{purpose} needs {package}, which is not installed; run: {install_command(module)}"
    return ModuleNotFoundError(message, name=package)
