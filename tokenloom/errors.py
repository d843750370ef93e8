"""What can go wrong, as types to catch, and `Result` for those who would rather look than catch.

Every error carries the exit code that the terminal ends with: 2 for a wrong config or command, 3 for data
that failed validation, 4 for a damaged store, 1 for anything else.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NoReturn, TypeVar, Union

T = TypeVar("T")
U = TypeVar("U")
E = TypeVar("E")
F = TypeVar("F")


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`"; did you mean x?"` for the known name that is most like the given one, or `""` where none is."""
    close = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


class TokenloomError(Exception):
    """The root of every error that tokenloom raises on purpose."""

    exit_code: ClassVar[int] = 1


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a config: where it is, what it is, what to do.

    `place` is "file:line" where a line is known, else the file or the setting's dotted path.
    """

    place: str
    message: str

    def __str__(self) -> str:
        told = self.message.startswith(f"{self.place}:")  # a setting that no file holds is its own place
        return self.message if told else f"{self.place}: {self.message}"


class ConfigError(TokenloomError):
    """The YAML, or what it names, is wrong. `faults` lists every fault found, in file order."""

    exit_code = 2

    def __init__(self, faults: Sequence[Fault] | str):
        """A text stands for faults where a `DataLoader` hands on what a worker process raised."""
        self.faults: tuple[Fault, ...] = () if isinstance(faults, str) else tuple(faults)
        super().__init__(faults if isinstance(faults, str) else "\n".join(map(str, self.faults)))

    def __reduce__(self) -> tuple[Any, ...]:
        return ConfigError, (self.faults or str(self),)


class SourceError(TokenloomError):
    """A data file or hub dataset is there but cannot be read; the message names it and the position."""

    exit_code = 3


class SourceUnavailableError(TokenloomError):
    """A remote source (a hub, a URL) did not answer."""


class TokenizerError(TokenloomError):
    """The tokenizer cannot be loaded, or lacks something that the config needs."""

    exit_code = 2


class TemplateError(TokenloomError):
    """A prompt or chat template is refused: its syntax, the sandbox, or what it says itself.

    `line` is the template's line, counted from 1, where it is known.
    """

    exit_code = 2

    def __init__(self, message: str, line: int | None = None):
        super().__init__(message)
        self.line = line


class SandboxError(TemplateError):
    """A template reaches for what is not data, or does too much for the data it is given."""


class SpansError(TemplateError):
    """What a template does with a value cannot be followed, so nobody can say what would be trained."""


class DataValidationError(TokenloomError):
    """A stage's output broke its contract, or too many rows were rejected."""

    exit_code = 3


class StoreError(TokenloomError):
    """An object, action or manifest of the store is missing or damaged."""

    exit_code = 4


class DamagedObjectError(StoreError):
    """An object's bytes are not those that its name says."""


class StoreUnavailableError(StoreError):
    """The object store that holds the store refuses, or does not answer; what is in it may be whole."""

    exit_code = 1


class StoreAddressError(StoreError):
    """The store's address is none that this version can open."""

    exit_code = 2


class LoaderStateError(TokenloomError):
    """A loader's state is damaged, or of other data, another order or another plan."""

    exit_code = 2


class MixtureEndedError(TokenloomError):
    """All datasets of a mixture have given their `epochs`: it has no more rows."""

    exit_code = 2


class DatasetNotFoundError(StoreError):
    """The store holds no such dataset, split or stage; the message lists what it holds."""

    exit_code = 2


@dataclass(frozen=True)
class Ok(Generic[T]):
    """Success, holding a value."""

    value: T

    def is_ok(self) -> bool:
        """True."""
        return True

    def is_err(self) -> bool:
        """False."""
        return False

    def unwrap(self) -> T:
        """The value."""
        return self.value

    def unwrap_err(self) -> NoReturn:
        """Raises ValueError: there is no error."""
        raise ValueError(f"unwrap_err on a success: {self.value!r}")

    def unwrap_or(self, default: Any) -> T:
        """The value."""
        return self.value

    def map(self, function: Callable[[T], U]) -> Ok[U]:
        """Success with `function` of the value."""
        return Ok(function(self.value))

    def map_err(self, function: Callable[[Any], Any]) -> Ok[T]:
        """Itself."""
        return self

    def and_then(self, function: Callable[[T], Result[U, E]]) -> Result[U, E]:
        """What `function`, which returns a Result, makes of the value."""
        return function(self.value)


@dataclass(frozen=True)
class Err(Generic[E]):
    """Failure, holding the error."""

    error: E

    def is_ok(self) -> bool:
        """False."""
        return False

    def is_err(self) -> bool:
        """True."""
        return True

    def unwrap(self) -> NoReturn:
        """Raises the error."""
        if isinstance(self.error, BaseException):
            raise self.error
        raise ValueError(f"unwrap on a failure: {self.error!r}")

    def unwrap_err(self) -> E:
        """The error."""
        return self.error

    def unwrap_or(self, default: T) -> T:
        """`default`."""
        return default

    def map(self, function: Callable[[Any], Any]) -> Err[E]:
        """Itself."""
        return self

    def map_err(self, function: Callable[[E], F]) -> Err[F]:
        """Failure with `function` of the error."""
        return Err(function(self.error))

    def and_then(self, function: Callable[[Any], Any]) -> Err[E]:
        """Itself."""
        return self


Result = Union[Ok[T], Err[E]]


def attempt(function: Callable[[], T]) -> Result[T, TokenloomError]:
    """Call `function`; a `TokenloomError` becomes an `Err`, anything else propagates."""
    try:
        return Ok(function())
    except TokenloomError as error:
        return Err(error)
