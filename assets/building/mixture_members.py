"""The datasets that a mixture names: the YAMLs beside its own that declare them, and whether they fit together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenloom.config import PipelineConfig
from tokenloom.config import MixtureConfig, MixtureSource
from tokenloom.config.load import Config, load_config, nearest
from tokenloom.errors import ConfigError, Fault

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Member:
    """One dataset of a mixture: what the mixture says of it, and the YAML that declares it; None where only a store has
    it."""

    source: MixtureSource
    config: PipelineConfig | None

    @property
    def name(self) -> str:
        return self.source.dataset


def yaml_files(folder: Path) -> list[Path]:
    """The YAMLs of a folder, sorted."""
    if not folder.is_dir():
        return []
    visible = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return sorted(entry for entry in visible if entry.suffix in SUFFIXES and entry.is_file())


def find_members(mixture: MixtureConfig, held: Callable[[], Collection[str]] | None = None) -> list[Member]:
    """The datasets of a mixture, in its order. Reads YAML only.

    Args:
        held: names the datasets that the store holds; None: those that no YAML declares are taken to be there.

    Raises:
        ConfigError: a name that nothing has, or that a mixture or two YAMLs have; a wrong YAML; datasets that do not
            fit together.
    """
    declared, broken = _declared_beside(mixture)
    members: list[Member] = []
    faults: list[Fault] = []
    for number, source in enumerate(mixture.mixture):
        name, found = source.dataset, declared.get(source.dataset, [])
        config, wrong = found[0] if found else None, ""
        if len(found) > 1:
            wrong = f"{name!r} is declared by {found[0].file} and by {found[1].file}; give one of them another `name:`"
        elif isinstance(config, MixtureConfig):
            wrong = f"{name!r} is a mixture itself; name its datasets instead: {', '.join(config.names)}"
        elif config is None and name in broken:
            faults += broken[name].faults
        elif config is None and held is not None and name not in (known := held()):
            close = nearest(name, [*declared, *(other for other in known if "@" not in other)])
            wrong = f"no YAML beside this one declares {name!r}, and the store does not hold it{close}"
        if wrong:
            faults += mixture.fault(f"mixture.{number}.dataset", f"mixture.{number}.dataset: {wrong}").faults
        members.append(Member(source, config if isinstance(config, PipelineConfig) else None))
    if not faults and (misfit := next(_misfits(members), None)) is not None:
        faults += mixture.fault("mixture", f"mixture: {misfit}").faults
    if faults:
        raise ConfigError(faults)
    return members


def _declared_beside(mixture: MixtureConfig) -> tuple[dict[str, list[Config]], dict[str, ConfigError]]:
    """What each YAML beside a mixture's declares, by name, and what is wrong with others, by stem."""
    declared: dict[str, list[Config]] = {}
    broken: dict[str, ConfigError] = {}
    for path in yaml_files(Path(mixture.folder or ".")):
        if str(path) != mixture.file:
            try:
                config = load_config(path)
            except ConfigError as error:
                broken[path.stem] = error
            else:
                declared.setdefault(config.dataset_name, []).append(config)
    return declared, broken


def _misfits(members: Sequence[Member]) -> Iterator[str]:
    """What keeps datasets from sharing a batch, as far as their YAMLs tell; each is held against the first."""
    known = [(member.name, member.config) for member in members if member.config is not None]
    for name, config in known:
        (first, other), own = known[0], config.tokenizer
        packing, packed = config.length.packing != "none", other.length.packing != "none"
        if config.dataset.streaming:
            yield f"{name} has dataset.streaming: true, and only what is built can be mixed"
        if packing != packed:
            yield f"{first} is {'' if packed else 'not '}packed and {name} is {'' if packing else 'not '}packed"
        if packing and own.max_length != other.tokenizer.max_length:
            yield f"{first} is packed to {other.tokenizer.max_length} tokens and {name} to {own.max_length}"
        for setting in ("padding", "padding_side"):
            if (given := getattr(own, setting)) != (before := getattr(other.tokenizer, setting)):
                yield f"tokenizer.{setting} is {before} in {first} and {given} in {name}"
        if own.train and other.tokenizer.train and name != first:
            told = f"{first} and {name} each train a tokenizer of their own, and a mixture has one"
            yield f"{told}; build {first}, and set tokenizer.name_or_path of {name} to what it trained"
