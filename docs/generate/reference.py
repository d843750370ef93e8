"""Write docs/configuration.md and docs/api_reference.md from the code. Part of `make docs`.

Settings are described by the fields in tokenloom/config/, names by their docstrings.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import tokenloom
from tokenloom import config, errors, loaders
from tokenloom.config import MixtureConfig, MixtureSource, PipelineConfig
from tokenloom.config.descriptions import describe_settings
from tokenloom.config.yaml_file import expected, section_of

DOCS = Path(__file__).parents[1]

CONFIGURATION_HEAD = """# Configuration

Every setting of the YAML. One file declares one dataset, or [mixes several](train/mixtures.md). This is enough:

```yaml
dataset: {name: data/alpaca_data.json}
tokenizer: {name_or_path: microsoft/phi-2}
```

- `dataset.name` is required, and a tokenizer: `tokenizer.name_or_path` or `tokenizer.train`.
- Relative paths are looked up in the YAML's folder, then in the working directory.
- An unknown setting, or a wrong type or value, is an error with its line and the nearest valid name.
- `tokenloom schema` prints the JSON Schema.
"""

MIXTURE = """A list of datasets to [mix](train/mixtures.md), instead of `dataset`, `tokenizer`, `prompt_template`,
`length`, `validation` and `keep`."""

API_HEAD = """# API reference

Every public name. Import them from `tokenloom`, `tokenloom.loaders`, `tokenloom.config` and `tokenloom.errors`.
All but the first never import Dagster, datasets, transformers or pandera. A `Result` is an `Ok` or an `Err`.
"""


def _own(module: Any) -> list[str]:
    """Return the names of the public classes and functions that a module defines, in source order."""
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    callables = [
        name for name in defined if inspect.isclass(vars(module)[name]) or inspect.isfunction(vars(module)[name])
    ]
    return [name for name in callables if not name.startswith("_")]


HIDDEN = ("PipelineConfig", "MixtureConfig", "Section", "Declaration", "DATASET_NAME", "DEFAULT_SPECIAL_TOKENS")

MODULES = {
    "tokenloom": (tokenloom, tokenloom.__all__),
    "tokenloom.loaders": (loaders, [name for name in loaders.__all__ if name not in tokenloom.__all__]),
    "tokenloom.config": (
        config,
        [name for name in config.__all__ if name not in HIDDEN],
    ),
    "tokenloom.errors": (errors, _own(errors)),
}


def configuration() -> str:
    """Return the text of docs/configuration.md."""
    describe_settings()
    sections = [CONFIGURATION_HEAD]
    top = [(name, field) for name, field in PipelineConfig.model_fields.items() if _section(field) is None]
    sections.append("\n## Top level\n\n" + _table((name, name, field) for name, field in top))
    for name, field in PipelineConfig.model_fields.items():
        if (model := _section(field)) is not None:
            sections.append(f"\n## {name}\n\n{_one_line(model.__doc__)}\n\n" + _table(_settings(name, model)))
        if name == "mixture":
            sections.append(
                f"\n## mixture\n\n{MIXTURE}\n\n" + _table(_settings("mixture", MixtureSource), MixtureConfig)
            )
    return "".join(sections)


def _settings(prefix: str, model: type[BaseModel]) -> Iterator[tuple[str, str, Any]]:
    for name, field in model.model_fields.items():
        yield f"{prefix}.{name}", name, field
        if (inner := _section(field)) is not None:
            yield from _settings(f"{prefix}.{name}", inner)


def _section(field: Any) -> type[BaseModel] | None:
    return section_of(field.annotation)


def _table(settings: Iterator[tuple[str, str, Any]], model: type[BaseModel] = PipelineConfig) -> str:
    lines = ["| setting | takes | default | meaning |", "|---|---|---|---|"]
    for path, _, field in settings:
        takes = expected(tuple(path.split(".")), model).text.replace("|", "\\|")
        default = "required" if field.is_required() else _default(field)
        lines.append(f"| `{path}` | {takes} | {default} | {_one_line(field.description)} |")
    return "\n".join(lines) + "\n"


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return ""
    if isinstance(value, bool) or value is None:
        return f"`{str(value).lower().replace('none', 'null')}`"
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def api_reference() -> str:
    """Return the text of docs/api_reference.md."""
    parts = [API_HEAD]
    for title, (module, names) in MODULES.items():
        parts.append(f"\n## {title}\n")
        for name in names:
            parts += _entry(name, getattr(module, name), "###")
    return "\n".join(parts) + "\n"


def _entry(name: str, value: Any, heading: str) -> Iterator[str]:
    yield f"{heading} `{name}{_signature(value)}`\n"
    if doc := _doc(value):
        yield doc + "\n"
    if inspect.isclass(value):
        for member, inner in vars(value).items():
            if not member.startswith("_") and (shown := _member(inner)) is not None and shown.__doc__:
                yield from _entry(f"{name}.{member}", shown, "####")


def _member(value: Any) -> Any:
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    if isinstance(value, property):
        return value.fget
    return value if inspect.isfunction(value) else getattr(value, "func", None)


def _signature(value: Any) -> str:
    if inspect.isclass(value) and (issubclass(value, BaseModel | Exception)):
        return ""
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return ""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    return re.sub(r"^\((self|cls)(, )?", "(", text)


def _doc(value: Any) -> str:
    if dataclasses.is_dataclass(value) and (value.__doc__ or "").startswith(getattr(value, "__name__", "\0") + "("):
        return ""
    doc = inspect.cleandoc(value.__doc__ or "") if hasattr(value, "__doc__") else ""
    lines, listed = [], False
    for line in doc.splitlines():
        if line in ("Args:", "Raises:", "Returns:", "Attributes:"):
            lines += [f"**{line[:-1]}**", ""]
            listed = True
        elif listed and line.startswith("    ") and not line.startswith("     "):
            lines.append(f"- {line.strip()}")
        else:
            listed = listed and line.startswith("    ")
            lines.append(line.strip() if listed else line)
    return "\n".join(lines)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def main() -> int:
    pages = {"configuration.md": configuration(), "api_reference.md": api_reference()}
    for name, text in pages.items():
        (DOCS / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
