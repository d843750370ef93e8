"""Finds the datasets that a mixture names, in the YAMLs of its folder, and checks that they fit together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenloom.config import MixtureConfig, MixtureSource, PipelineConfig
from tokenloom.config.load import Config, load_config
from tokenloom.config.yaml_file import is_yaml
from tokenloom.errors import ConfigError, Fault, did_you_mean


@dataclass(frozen=True)
class Member:
    """One dataset of a mixture: its entry in the mixture, and its YAML; None if it is only in the store."""

    source: MixtureSource
    config: PipelineConfig | None

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self.source.dataset


def yaml_files(folder: Path) -> list[Path]:
    """Return the YAML files of a folder, sorted, without hidden ones."""
    if not folder.is_dir():
        return []
    visible = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return sorted(entry for entry in visible if is_yaml(entry) and entry.is_file())


Read = Config | ConfigError
"""What reading a YAML gave."""


def read_config(path: Path) -> Read:
    """Return what a YAML declares, or what is wrong with it."""
    try:
        return load_config(path)
    except ConfigError as error:
        return error


def find_members(
    mixture: MixtureConfig,
    stored_names: Callable[[], Collection[str]] | None = None,
    read: Callable[[Path], Read] = read_config,
) -> list[Member]:
    """Return the datasets of a mixture, in its order. Reads YAML only.

    Args:
        stored_names: returns the names of the datasets in the store; None: assume that the store holds every dataset
            that no YAML declares.
        read: reads a YAML of the mixture's folder.

    Raises:
        ConfigError: a name is unknown, names a mixture, or is declared twice; a YAML is wrong; or datasets do not fit
            together.
    """
    declared, broken = _declared_in_folder(mixture, read)
    members: list[Member] = []
    faults: list[Fault] = []
    for number, source in enumerate(mixture.mixture):
        name, configs = source.dataset, declared.get(source.dataset, [])
        config, message = configs[0] if configs else None, ""
        if len(configs) > 1:
            files = f"{configs[0].file} and {configs[1].file}"
            message = f"{name!r} is declared by both {files}; give one of them another `name:`"
        elif isinstance(config, MixtureConfig):
            message = f"{name!r} is itself a mixture; list its datasets instead: {', '.join(config.names)}"
        elif config is None and name in broken:
            faults += broken[name].faults
        elif config is None and stored_names is not None and name not in (stored := stored_names()):
            hint = did_you_mean(name, [*declared, *(other for other in stored if "@" not in other)])
            message = f"no YAML in this folder declares {name!r}, and the store does not hold it{hint}"
        if message:
            faults += mixture.fault(f"mixture.{number}.dataset", message).faults
        members.append(Member(source, config if isinstance(config, PipelineConfig) else None))
    if not faults and (misfit := next(_misfits(members), None)) is not None:
        faults += mixture.fault("mixture", misfit).faults
    if faults:
        raise ConfigError(faults)
    return members


def _declared_in_folder(
    mixture: MixtureConfig, read: Callable[[Path], Read]
) -> tuple[dict[str, list[Config]], dict[str, ConfigError]]:
    """Return the configs in the mixture's folder by dataset name, and the errors of wrong YAMLs by file stem."""
    declared: dict[str, list[Config]] = {}
    broken: dict[str, ConfigError] = {}
    for path in yaml_files(Path(mixture.folder or ".")):
        if str(path) != mixture.file:
            found = read(path)
            if isinstance(found, ConfigError):
                broken[path.stem] = found
            else:
                declared.setdefault(found.dataset_name, []).append(found)
    return declared, broken


def _misfits(members: Sequence[Member]) -> Iterator[str]:
    """Yield why datasets cannot share a batch, as far as their YAMLs show. Each is compared with the first."""
    known = [(member.name, member.config) for member in members if member.config is not None]
    for name, config in known:
        (first, other), tokenizer = known[0], config.tokenizer
        packing, other_packing = config.length.packing != "none", other.length.packing != "none"
        if config.dataset.streaming:
            yield f"{name} has dataset.streaming: true, but only built datasets can be mixed"
        if packing != other_packing:
            packed, unpacked = (name, first) if packing else (first, name)
            yield f"{packed} is packed, but {unpacked} is not; set length.packing in both or in neither"
        if packing and tokenizer.max_length != other.tokenizer.max_length:
            yield f"{first} is packed to {other.tokenizer.max_length} tokens and {name} to {tokenizer.max_length}"
        for setting in ("padding", "padding_side"):
            if (value := getattr(tokenizer, setting)) != (other_value := getattr(other.tokenizer, setting)):
                yield f"tokenizer.{setting} is {other_value} in {first} and {value} in {name}; set the same in both"
        if tokenizer.train and other.tokenizer.train and name != first:
            message = f"{first} and {name} each train their own tokenizer, but a mixture needs a single one"
            yield f"{message}; build {first}, then set tokenizer.name_or_path of {name} to its tokenizer"
