"""Datasets on the hub, through `datasets`; and what the hub's failures mean for the one who named a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tokenloom.config import PipelineConfig
from tokenloom.errors import SourceError, SourceUnavailableError, TokenloomError


@dataclass(frozen=True)
class HubDataset:
    """A dataset on the hub."""

    name: str


@dataclass(frozen=True)
class OpenedHubDataset:
    """A hub dataset's splits by name, and the commit that its revision stood for (None where the hub does not say)."""

    splits: dict[str, Any]
    commit: str | None


def open_hub_dataset(config: PipelineConfig, source: HubDataset) -> OpenedHubDataset:
    """Splits of a hub dataset as `datasets.Dataset`, or with `streaming: true` as `datasets.IterableDataset`.

    Raises:
        ConfigError: no such dataset, revision or subset exists, or it has several subsets and the YAML names none.
        SourceUnavailableError: the hub does not answer.
        SourceError: its files cannot be read.
    """
    import datasets

    name, wanted = source.name, config.dataset.config
    commit = _commit(name, config.dataset.revision)
    revision = commit or config.dataset.revision
    try:
        if wanted is None and (wanted := datasets.get_dataset_default_config_name(name, revision=revision)) is None:
            names = ", ".join(datasets.get_dataset_config_names(name, revision=revision))
            raise config.fault("dataset.config", f"dataset.config: {name} has several: {names}; name one")
        loaded: Any = datasets.load_dataset(name, wanted, revision=revision, streaming=config.dataset.streaming)
    except TokenloomError:
        raise
    except Exception as error:
        raise _hub_error(config, name, error) from error
    return OpenedHubDataset(dict(loaded), commit)


def _commit(name: str, revision: str | None) -> str | None:
    """The commit that a revision stands for now; None where the hub gives no answer: loading then says why."""
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(name, revision=revision, expand=["sha"]).sha
    except Exception:
        return None


def _hub_error(config: PipelineConfig, name: str, error: Exception) -> TokenloomError:
    """What `datasets` met on the hub, as the error that names the YAML's line, the hub, or the data."""
    import datasets
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import HFValidationError, RevisionNotFoundError

    wanted, revision = config.dataset.config, config.dataset.revision
    told = _first_line(error).rstrip(".")
    if isinstance(error.__cause__, RevisionNotFoundError):
        return config.fault("dataset.revision", f"dataset.revision: {name} has no revision {revision} on the hub")
    if _is_hub_failure(error):
        return hub_unavailable(name, error)
    if isinstance(error, FileNotFoundError | HFValidationError):
        if isinstance(error, DatasetNotFoundError):
            told += "; check its spelling, or HF_TOKEN where it is private"
        return config.fault("dataset.name", f"dataset.name: {name} is no local file, and on the hub: {told}")
    if isinstance(error, OSError):
        return hub_unavailable(name, error)
    if wanted is not None and isinstance(error, ValueError):
        names = datasets.get_dataset_config_names(name, revision=revision)
        if wanted not in names:
            there = ", ".join(names)
            return config.fault("dataset.config", f"dataset.config: {name} has no {wanted}; there are {there}")
    told = _first_line(error.__cause__ or error).rstrip(".")
    return SourceError(
        f"{name}: datasets cannot load it: {told}; download its files and name them, then only bad rows are rejected"
    )


def hub_unavailable(name: str, error: BaseException) -> SourceUnavailableError:
    """The error for a name that is not here, and that for no fault of the YAML's cannot be had from the hub."""
    from huggingface_hub import constants
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    if not _is_hub_failure(error):
        return SourceUnavailableError(f"{name} cannot be fetched from the hub: {_first_line(error)}")
    refusals = [cause for cause in _causes(error) if isinstance(cause, HfHubHTTPError)]
    statuses = [cause.response.status_code for cause in refusals if not isinstance(cause, EntryNotFoundError)]
    if constants.HF_HUB_OFFLINE:
        told, remedy = "is not asked", "unset HF_HUB_OFFLINE"
    elif not statuses:
        told, remedy = "cannot be reached", "try again"
    else:
        told, remedy = f"answers {statuses[0]}", "check HF_TOKEN" if statuses[0] in (401, 403) else "try again"
    return SourceUnavailableError(
        f"{name} is not here, and the hub at {constants.ENDPOINT} {told}; {remedy}, or name a local copy"
    )


def _is_hub_failure(error: BaseException) -> bool:
    """Whether the hub gave no answer, or one that says nothing of what was asked for."""
    from huggingface_hub.errors import (
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # of whichever HTTP client the hub's own uses
        LocalEntryNotFoundError,
    )

    if isinstance(error, HTTPError | ConnectionError | TimeoutError):
        return True
    return any(isinstance(cause, LocalEntryNotFoundError) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, and those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first_line(error: BaseException) -> str:
    """What an exception says first, or its type where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
