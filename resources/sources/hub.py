"""Datasets on the Hugging Face Hub or of tensorflow_datasets, and their failures as errors that name the cause."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.config import PipelineConfig
from tokenloom.config.yaml_file import MOST_NODES, check_expansion, read_small_file
from tokenloom.errors import (
    ConfigError,
    SourceError,
    SourceRefusedError,
    SourceUnavailableError,
    TokenloomError,
    did_you_mean,
    install_command,
)
from tokenloom.resources.visible import causes, first_line

PROTOCOL = "tfds://"
MARKS = ("dataset_info.json", "features.json")
"""Files that every folder prepared by tensorflow_datasets contains."""

BATCH_ROWS = 10_000


@dataclass(frozen=True)
class TfdsDataset:
    """A prepared dataset: a name such as `gsm8k` or `imdb_reviews/plain_text:1.0.0`, and its folder if the YAML names
    one."""

    name: str
    folder: Path | None = None


def is_tfds_folder(path: Path) -> bool:
    """Return whether a folder contains a prepared dataset."""
    return all((path / mark).is_file() for mark in MARKS)


def open_tfds(config: PipelineConfig, source: TfdsDataset) -> dict[str, Iterator[pa.Table]]:
    """Open a prepared dataset: its splits by name, each as tables of up to BATCH_ROWS rows.

    Raises:
        ConfigError: the package is not installed, or the dataset is unknown or not prepared.
    """
    try:
        import tensorflow_datasets as tfds  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        command = install_command("tensorflow_datasets")
        message = f"{source.name} needs the package tensorflow_datasets: {error}; run: {command}"
        raise config.fault("dataset.name", message) from error
    try:
        builder: Any = tfds.builder_from_directory(source.folder) if source.folder else tfds.builder(source.name)
        splits = list(builder.info.splits)
    except Exception as error:
        message = f"tensorflow_datasets cannot open {source.name}: {first_line(error)}"
        raise config.fault("dataset.name", message) from error
    if not splits:
        raise config.fault("dataset.name", f"{source.name} is not prepared; run `tfds build {source.name}`")
    return {split: _tables(builder, split, source.name) for split in splits}


def _tables(builder: Any, split: str, name: str) -> Iterator[pa.Table]:
    try:
        if getattr(builder.info.file_format, "value", "") == "array_record":
            rows = iter(builder.as_data_source(split=split))
        else:  # only other formats need TensorFlow
            import tensorflow_datasets as tfds  # pyright: ignore[reportMissingImports]

            rows = iter(tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False)))
        while block := [_plain(row) for row in islice(rows, BATCH_ROWS)]:
            yield pa.Table.from_pylist(block)
    except (OSError, NotImplementedError, ImportError, ValueError) as error:
        raise SourceError(f"{name}: tensorflow_datasets cannot read it: {first_line(error)}") from error


def _plain(value: Any) -> Any:
    """Convert a feature's value to plain Python types; bytes that are valid UTF-8 become str."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
CHECK_NAME = f"check its spelling; if it is private, {LOG_IN}"

LARGEST_CARD = 16 << 20
"""Most bytes that a dataset's card can have."""


@dataclass(frozen=True)
class HubDataset:
    """A dataset on the hub."""

    name: str


@dataclass(frozen=True)
class OpenedHubDataset:
    """A hub dataset's splits by name, and the commit that its revision resolved to (None if unknown)."""

    splits: dict[str, Any]
    commit: str | None


def _is_news(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    return "thrown while requesting" not in message and not message.startswith("Retrying in ")


@contextmanager
def quiet_retries() -> Iterator[None]:
    """Keep the hub's client from logging each failed attempt: the error after the last one says why."""
    logger = logging.getLogger("huggingface_hub.utils._http")
    logger.addFilter(_is_news)
    try:
        yield
    finally:
        logger.removeFilter(_is_news)


@quiet_retries()
def open_hub_dataset(config: PipelineConfig, source: HubDataset) -> OpenedHubDataset:
    """Open a hub dataset: its splits as `datasets.Dataset`, or with `streaming: true` as `datasets.IterableDataset`.

    Raises:
        ConfigError: the dataset, revision or subset does not exist, or it has several subsets and the YAML names none.
        SourceUnavailableError: the hub is unreachable or refuses access.
        SourceError: its files cannot be read.
    """
    import datasets
    from huggingface_hub import HfApi

    name, subset = source.name, config.dataset.config
    # everything is loaded of one commit, so that it cannot change in between
    try:
        commit = HfApi().dataset_info(name, revision=config.dataset.revision, expand=["sha"]).sha
    except Exception:
        commit = None  # loading reports why
    revision = commit or config.dataset.revision
    _check_card(name, revision)
    try:
        if subset is None and (subset := datasets.get_dataset_default_config_name(name, revision=revision)) is None:
            subsets = ", ".join(datasets.get_dataset_config_names(name, revision=revision))
            raise config.fault("dataset.config", f"{name} has several subsets; set it to one of {subsets}")
        loaded: Any = datasets.load_dataset(name, subset, revision=revision, streaming=config.dataset.streaming)
    except TokenloomError:
        raise
    except Exception as error:
        raise _hub_error(config, name, error) from error
    return OpenedHubDataset(dict(loaded), commit)


@quiet_retries()
def resolved_commit(config: PipelineConfig, source: HubDataset) -> str:
    """Return the commit that the dataset's revision resolves to now.

    Raises:
        ConfigError, SourceUnavailableError: as `open_hub_dataset`.
    """
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(source.name, revision=config.dataset.revision, expand=["sha"]).sha or ""
    except Exception as error:
        raise _hub_error(config, source.name, error) from error


def _check_card(name: str, revision: str | None) -> None:
    """Raise a SourceError if the YAML of a dataset's card, whose aliases `datasets` expands without a limit, is or
    would become too large."""
    import yaml
    from huggingface_hub import hf_hub_download
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    try:
        path = Path(hf_hub_download(name, "README.md", repo_type="dataset", revision=revision))
    except Exception:
        return  # it has no card, or cannot be reached, which loading reports
    try:
        text = read_small_file(path, LARGEST_CARD).decode(errors="replace")
        if "&" in text and "*" in text:
            block = REGEX_YAML_BLOCK.search(text)
            check_expansion(block[2] if block else "", path.name, max(MOST_NODES, len(text)))
    except (ConfigError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SourceError(f"{name}: its card: {reason}; download its files and use them as dataset.name") from None
    except yaml.YAMLError:
        return  # which loading reports


def _hub_error(config: PipelineConfig, name: str, error: Exception) -> TokenloomError:
    import datasets
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    subset, revision = config.dataset.config, config.dataset.revision
    reason = first_line(error).rstrip(".")
    if isinstance(error, RevisionNotFoundError) or isinstance(error.__cause__, RevisionNotFoundError):
        return config.fault("dataset.revision", f"{name} has no revision {revision} on the hub")
    if is_gated(error):
        return config.fault("dataset.name", gated(name, "datasets/"))
    if isinstance(error, RepositoryNotFoundError):
        return config.fault("dataset.name", f"{name} is not a local file, and not found on the hub; {CHECK_NAME}")
    if _is_hub_failure(error):
        return hub_unavailable(name, error)
    if isinstance(error, FileNotFoundError | HFValidationError):
        if isinstance(error, DatasetNotFoundError):
            reason += f"; {CHECK_NAME}"
        return config.fault("dataset.name", f"{name} is not a local file, and not found on the hub: {reason}")
    if isinstance(error, OSError):
        return hub_unavailable(name, error)
    if subset is not None and isinstance(error, ValueError):
        subsets = datasets.get_dataset_config_names(name, revision=revision)
        if subset not in subsets:
            hint = did_you_mean(subset, subsets)
            message = f"{name} has no subset {subset!r} (subsets: {', '.join(subsets)}){hint}"
            return config.fault("dataset.config", message)
    reason = first_line(error.__cause__ or error).rstrip(".")
    return SourceError(
        f"{name}: `datasets` cannot load it: {reason}; download its files and use them as dataset.name, so that only "
        "bad rows are rejected"
    )


def is_gated(error: BaseException) -> bool:
    """Return whether a repository's terms must be accepted first."""
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import GatedRepoError

    if isinstance(error, DatasetNotFoundError) and "is a gated dataset" in str(error):  # it hides its cause
        return True
    return any(isinstance(cause, GatedRepoError) for cause in causes(error))


def gated(name: str, kind: str = "") -> str:
    """Return what is wrong with the name of a gated repository, and what to do.

    Args:
        kind: what comes before the name in the address of its page.
    """
    from huggingface_hub import constants

    return f"{name} is gated on the hub; accept its terms at {constants.ENDPOINT}/{kind}{name}, then {LOG_IN}"


def hub_unavailable(name: str, error: BaseException) -> SourceUnavailableError:
    """Return the error for a name that is not available locally, if the hub failed and the YAML is not at fault."""
    from huggingface_hub import constants
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    if not _is_hub_failure(error):
        return SourceUnavailableError(f"{name} cannot be downloaded from the hub: {first_line(error)}")
    refusals = [cause for cause in causes(error) if isinstance(cause, HfHubHTTPError)]
    statuses = [cause.response.status_code for cause in refusals if not isinstance(cause, EntryNotFoundError)]
    hub = f"the hub at {constants.ENDPOINT}"
    if constants.HF_HUB_OFFLINE:
        reason, remedy = "HF_HUB_OFFLINE is set", "unset it"
    elif not statuses:
        reason, remedy = f"{hub} is unreachable", "try again"
    else:
        refused = "log in again with `hf auth login`, or correct HF_TOKEN"
        reason, remedy = f"{hub} returned {statuses[0]}", refused if statuses[0] in (401, 403) else "try again"
    kind = SourceUnavailableError if remedy == "try again" else SourceRefusedError
    return kind(f"{name} is not available locally, and {reason}; {remedy}, or use a local copy")


def _is_hub_failure(error: BaseException) -> bool:
    from huggingface_hub.errors import (
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # from the HTTP client that huggingface_hub uses
        LocalEntryNotFoundError,
    )

    if isinstance(error, HTTPError | ConnectionError | TimeoutError):
        return True
    return any(isinstance(cause, LocalEntryNotFoundError) for cause in causes(error))
