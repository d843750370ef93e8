"""Versions: every published state of a dataset, as the manifests of its stages, ordered by time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tokenloom.errors import DatasetNotFoundError
from tokenloom.resources.store.blobs.blobs import Blob, Blobs
from tokenloom.resources.store.blobs.object_names import is_digest
from tokenloom.resources.store.records import decode_record, encode_record

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
        known = self.of(dataset)
        if (moment := _moment(requested)) is not None:
            matches = [version for version in known if version.published <= moment][-1:]
        elif len(requested) >= MIN_PREFIX:
            matches = [version for version in known if version.digest.startswith(requested.lower())]
        else:
            matches = []
        if len({version.digest for version in matches}) == 1:
            return matches[-1]
        listed = ", ".join(map(str, (matches or known)[-LISTED:])) or "none"
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
