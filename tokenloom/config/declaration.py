"""What every YAML declares, whether a dataset or a mixture: its name, and how it is read and checked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError

from tokenloom.config.faults import setting_fault, validation_faults
from tokenloom.config.schema import DATASET_NAME, Section
from tokenloom.config.yaml_file import Origin, read_yaml
from tokenloom.errors import ConfigError


def _version_text(value: Any) -> Any:
    return "1.0" if isinstance(value, float) and value == 1.0 else value


class Declaration(Section):
    """The settings of every YAML."""

    type: Literal["data_module"] = "data_module"
    """The only supported type."""
    version: Annotated[Literal["1.0"], BeforeValidator(_version_text)] = "1.0"
    """The only supported version."""
    name: Annotated[str, Field(pattern=f"^{DATASET_NAME}$")] | None = None
    """Name in the store, in asset keys and in `open_dataset`. Default: the file's stem."""

    misplaced: ClassVar[Mapping[str, str]] = {}
    """Settings of another kind of YAML, with the error message for each."""

    _origin: Origin | None = PrivateAttr(default=None)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Read a YAML file.

        Raises:
            ConfigError: one fault per wrong setting, with its line and the most similar valid name.
        """
        return cls.checked(*read_yaml(Path(path)))

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> Self:
        """Check the same settings given in Python. Faults name them by their dotted path.

        Raises:
            ConfigError: one fault per wrong setting.
        """
        return cls.checked(settings)

    @classmethod
    def checked(cls, settings: Mapping[str, Any], origin: Origin | None = None) -> Self:
        """Return the config of some settings.

        Args:
            origin: the file that they were read from.

        Raises:
            ConfigError: one fault per wrong setting, in file order.
        """
        cls.refuse_other_kind(settings, origin)
        try:
            config = cls.model_validate(settings)
        except ValidationError as error:
            raise ConfigError(validation_faults(error, origin, cls, cls.misplaced)) from None
        config._origin = origin
        if not re.fullmatch(DATASET_NAME, config.dataset_name):
            message = f"{config.dataset_name!r} is not a valid dataset name; set `name:` to letters, digits, _, . and -"
            raise config.fault("name", f"name: {message}")
        faults = [setting_fault(origin, name, message) for name, message in config.contradictions()]
        if faults:
            raise ConfigError(faults)
        return config

    @classmethod
    def refuse_other_kind(cls, settings: Mapping[str, Any], origin: Origin | None) -> None:
        """
        Raises:
            ConfigError: the settings declare something else.
        """

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """Yield settings that conflict with others or have no effect, and why."""
        yield from ()

    @property
    def dataset_name(self) -> str:
        """The name in the store, in asset keys and in `open_dataset`."""
        return self.name or (self._origin.path.stem if self._origin else "dataset")

    @property
    def folder(self) -> str | None:
        """The folder of the YAML file, for relative paths; None if the config did not come from a file."""
        return str(self._origin.path.parent) if self._origin else None

    @property
    def file(self) -> str | None:
        """The YAML file, or None."""
        return str(self._origin.path) if self._origin else None

    def line(self, setting: str) -> int:
        """Return the line of a setting, or of the nearest section in the file, counted from 1."""
        return self._origin.line(tuple(setting.split("."))) if self._origin else 1

    def fault(self, setting: str, message: str, offset: int | None = None) -> ConfigError:
        """Return a `ConfigError` about a setting, with its line in the file.

        Args:
            setting: dotted name; the message is prefixed with it unless it already starts with it.
            message: what is wrong, and what to do about it.
            offset: line inside a block of text, counted from 0.
        """
        return ConfigError([setting_fault(self._origin, setting, message, offset)])
