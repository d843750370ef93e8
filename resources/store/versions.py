"""Versions: every published state of a dataset, as the manifests of its stages, ordered by time; pins on them, and
locks that keep an open manifest from `gc`.

A read lock is a shared `flock` on the manifest's file, for stores in folders only. The kernel releases it when the
process ends, even if it is killed. Where the platform has no `flock` (Windows), no lock is taken: do not run `gc` while
processes read old versions there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tokenloom.errors import DatasetNotFoundError, StoreError, StoreUnavailableError, did_you_mean
from tokenloom.resources.file_lock import lock_shared
from tokenloom.resources.store.actions import decode_record, encode_record
from tokenloom.resources.store.blobs.blobs import Blob, Blobs, is_digest

STORE = ".tokenloom"
"""Name of the folder of a store that no setting names."""

PROJECT_FILES = ("pyproject.toml", "workspace.yaml", ".git")
"""Files and folders of which one marks the root of a project."""


def default_store(beside: str | os.PathLike[str] | None = None) -> str:
    """Return the address of the store to use where none is named.

    It is `$TOKENLOOM_STORE`; else the nearest existing `.tokenloom` in `beside` or a folder above it; else in the
    working directory or above it. If there is none, it is a new `.tokenloom` at the root of the project: in the nearest
    folder above `beside` that has one of `PROJECT_FILES`, else in `beside` itself.

    Args:
        beside: the folder of a dataset's YAML. Default: the working directory; also for the YAMLs of an installed
            package, where no data belongs.
    """
    if named := os.environ.get("TOKENLOOM_STORE"):
        return named
    here = Path.cwd()
    start = Path(beside or here).absolute()
    if "site-packages" in start.parts:
        start = here
    for folder in (*_upwards(start), *_upwards(here)):
        if os.path.isdir(folder / STORE):  # noqa: PTH112  # `Path.is_dir` fails in a folder that cannot be read
            return str(folder / STORE)
    marked = (folder for folder in _upwards(start) if any(os.path.exists(folder / mark) for mark in PROJECT_FILES))  # noqa: PTH110
    return str(next(marked, start) / STORE)


def _upwards(folder: Path) -> Iterator[Path]:
    yield folder
    yield from folder.parents


PINS = "pins"

RUN_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"


@dataclass(frozen=True)
class Pin:
    """A pinned state of a dataset or mixture.

    Args:
        dataset: its name.
        run: the name of the pin, usually that of a training run.
        digest: content digest of the pinned version.
        stages: object digest of each stage's manifest; of a mixture, of its manifest.
        created: time in UTC, ISO 8601.
    """

    dataset: str
    run: str
    digest: str
    stages: dict[str, str]
    created: str = ""

    def __str__(self) -> str:
        return f"{self.dataset} {self.digest[:12]}"


class PinStore:
    """Reads, adds and removes pins."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs

    def add(self, pin: Pin) -> Pin:
        """Store a pin, unless it exists with the same version; returns the stored one.

        Raises:
            DatasetNotFoundError: the run already pins another version.
            ValueError: the run's name is not valid.
        """
        name, now = self.blob(pin.dataset, pin.run), datetime.now(UTC).isoformat(timespec="seconds")
        content = {"digest": pin.digest, "stages": pin.stages, "created": now}
        self._blobs.create_new(name, encode_record(name, content))
        # read back: of two processes that pin at once, the first one decides for both
        stored = self.find(pin.dataset, pin.run)
        if stored is None:
            raise StoreError(f"{name} was removed while it was written")
        if stored.digest != pin.digest:
            raise DatasetNotFoundError(
                f"the run {pin.run!r} already pins {stored}, not {pin.digest[:12]}; use another name, or first run "
                f"tokenloom unpin {pin.dataset} --as {pin.run}"
            )
        return stored

    def find(self, dataset: str, run: str) -> Pin | None:
        """Return a run's pin of a dataset, or None if it has none.

        Raises:
            StoreError: the pin is damaged, so it is unknown what it names.
            ValueError: the run's name is not valid.
        """
        return self.read(self.blob(dataset, run))

    def of(self, dataset: str) -> list[Pin]:
        """Return the pins of a dataset, by run.

        Raises:
            StoreError: a pin is damaged, so it is unknown what it names.
        """
        names = [blob.name for blob in self._blobs.below(f"{PINS}/{dataset}") if blob.name.endswith(".json")]
        return [pin for name in names if (pin := self.read(name)) is not None]

    def read(self, name: str) -> Pin | None:
        """Return the pin in a blob, or None if it does not exist.

        Raises:
            StoreError: it is damaged.
        """
        _, dataset, *rest = name.removesuffix(".json").split("/")
        run = "/".join(rest)
        try:
            entry: Any = decode_record(name, self._blobs.read(name))
            stages = {str(stage): str(manifest) for stage, manifest in dict(entry["stages"]).items()}
            return Pin(dataset, run, str(entry["digest"]), stages, str(entry["created"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise StoreError(
                f"{name} cannot be read, so what it names is unknown; run tokenloom unpin {dataset} --as {run}, then "
                "pin the version again"
            ) from None

    def require(self, dataset: str, run: str) -> str:
        """Return the blob name of a pin that exists.

        Raises:
            DatasetNotFoundError: it does not exist; the message lists those that do.
            ValueError: the run's name is not valid.
        """
        name = self.blob(dataset, run)
        if self._blobs.size(name) is None:
            runs = [blob.name.split("/")[-1].removesuffix(".json") for blob in self._blobs.below(f"{PINS}/{dataset}")]
            known = ", ".join(runs) or "none"
            raise DatasetNotFoundError(f"{dataset!r} has no pin {run!r} (pins: {known}){did_you_mean(run, runs)}")
        return name

    def remove(self, dataset: str, run: str) -> None:
        """Remove a pin.

        Raises:
            DatasetNotFoundError: it does not exist; the message lists those that do.
            ValueError: the run's name is not valid.
        """
        self._blobs.delete(self.require(dataset, run))

    @staticmethod
    def blob(dataset: str, run: str) -> str:
        """Return the blob name of a pin.

        Raises:
            DatasetNotFoundError: the dataset's name is not valid.
            ValueError: the run's name is not valid.
        """
        if dataset in ("", ".", "..") or "/" in dataset or "\\" in dataset:
            raise DatasetNotFoundError(f"{dataset!r} is not a valid dataset name")
        if not isinstance(run, str) or not re.fullmatch(RUN_NAME, run):
            raise ValueError(f"a pin's name must be letters, digits, _, . and -, at most 100, got {run!r}")
        return f"{PINS}/{dataset}/{run}.json"


class ReadLock:
    """A shared lock on a file, held as long as this object or an unpickled copy of it exists.

    Raises:
        StoreError: the file has been removed.
    """

    def __init__(self, path: Path):
        self._path = path
        removed = StoreError(f"object {path.stem} has been removed by gc; open the dataset again")
        try:
            self._file = path.open("rb")
        except FileNotFoundError:
            raise removed from None
        except OSError as error:
            raise StoreUnavailableError(f"object {path.stem} cannot be read: {error.strerror}") from error
        lock_shared(self._file)
        if not os.fstat(self._file.fileno()).st_nlink:  # gc deleted it between `open` and the lock
            raise removed

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def __reduce__(self) -> tuple[type[ReadLock], tuple[Path]]:
        return ReadLock, (self._path,)


VERSIONS = "versions"

LOADED = "sequences"
"""The stage that loaders open. Its content digest names a version."""

LISTED = 5
"""Maximum number of versions listed in an error message."""

MIN_PREFIX = 4
"""Shortest digest prefix that names a version."""

_STAMP = "%Y%m%dT%H%M%S.%fZ"


@dataclass(frozen=True)
class Version:
    """One published state of a dataset.

    Args:
        digest: content digest of its last stage.
        published: time of publication, in UTC.
        stages: object digest of each stage's manifest.
    """

    digest: str
    published: datetime
    stages: dict[str, str]

    def __str__(self) -> str:
        return f"{self.digest[:12]} of {self.published:%Y-%m-%d %H:%M:%S} UTC"


class VersionStore:
    """Reads and adds versions of datasets."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs

    def add(self, dataset: str, digest: str, stages: dict[str, str]) -> None:
        """Record a version published now, unless it equals the latest one."""
        names = [blob.name for blob in self._blobs.below(self.folder(dataset))]
        latest = next(filter(None, map(self.read, reversed(names))), None)
        if latest is not None and (latest.digest, latest.stages) == (digest, stages):
            return
        version = Version(digest, datetime.now(UTC), stages)
        self.put(f"{self.folder(dataset)}/{version.published.strftime(_STAMP)}-{digest[:16]}.json", version)

    def put(self, name: str, version: Version) -> None:
        """Write a version to a blob."""
        self._blobs.write(name, encode_record(name, {"digest": version.digest, "stages": version.stages}))

    def of(self, dataset: str) -> list[Version]:
        """Return all readable versions of a dataset, oldest first."""
        return [version for blob in self.blobs(dataset) if (version := self.read(blob.name))]

    def blobs(self, dataset: str) -> list[Blob]:
        """Return the blobs of a dataset's versions, oldest first."""
        return [blob for blob in self._blobs.below(self.folder(dataset)) if blob.name.endswith(".json")]

    def read(self, name: str) -> Version | None:
        """Return the version in a blob, or None if it is missing or damaged."""
        try:
            entry = decode_record(name, self._blobs.read(name))
            published = datetime.strptime(name.rpartition("/")[2].partition("-")[0], _STAMP).replace(tzinfo=UTC)
            digest, stages = entry["digest"], entry["stages"]
            intact = isinstance(digest, str) and isinstance(stages, dict) and all(map(is_digest, stages.values()))
            return Version(digest, published, stages) if intact else None
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def find(self, dataset: str, requested: str) -> Version:
        """Return the version that a digest prefix or a date names.

        Args:
            requested: the first characters of a version's digest, at least 4; or a date or time, for the latest version
                published by then: `2026-03-01` (the end of that day) or `2026-03-01T12:00`, in UTC unless it names a
                time zone.

        Raises:
            DatasetNotFoundError: no version or several versions match; the message lists the latest ones.
        """
        versions = self.of(dataset)
        if (moment := _moment(requested)) is not None:
            matches = [version for version in versions if version.published <= moment][-1:]
        elif len(requested) >= MIN_PREFIX:
            matches = [version for version in versions if version.digest.startswith(requested.lower())]
        else:
            matches = []
        if len({version.digest for version in matches}) == 1:
            return matches[-1]
        listed = ", ".join(map(str, (matches or versions)[-LISTED:])) or "none"
        problem = "several versions" if matches else "no version"
        raise DatasetNotFoundError(f"dataset {dataset!r} has {problem} {requested!r}; the latest are: {listed}")

    @staticmethod
    def folder(dataset: str) -> str:
        return f"{VERSIONS}/{dataset}"


def _moment(text: str) -> datetime | None:
    """Return the last moment of a date, or a time; None if the text is neither."""
    if "-" not in text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment + timedelta(days=1, microseconds=-1) if len(text) == len("2026-03-01") else moment
