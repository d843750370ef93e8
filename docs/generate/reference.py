"""Write the pages of docs/configuration/ and docs/api/ from the code, one page per job. Part of `make docs`.

Settings are described by the fields in tokenloom/config/, names by their docstrings.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import tokenloom
from tokenloom import config, dagster, errors, loaders, trainer
from tokenloom.config import MixtureConfig, MixtureSource, PipelineConfig
from tokenloom.config.sections import describe_settings
from tokenloom.config.yaml_file import expected, section_of
from tokenloom.exporters import export_folder
from tokenloom.importers import imported_config
from tokenloom.starter import source_facts

DOCS = Path(__file__).parents[1]

WIDTH = 100
"""Signatures that are longer have one parameter per line."""

CONFIGURATION_HEAD = """# Configuration

Every setting of the YAML, by job. One file declares one dataset, or [mixes several](../train/mixtures.md).
This is enough:

```yaml
dataset: {name: data/alpaca_data.json}
tokenizer: {name_or_path: microsoft/phi-2}
```

- `dataset.name` is required, and a tokenizer: `tokenizer.name_or_path` or `tokenizer.train`.
- Relative paths are looked up in the YAML's folder, then in the working directory.
- An unknown setting, or a wrong type or value, is an error with its line and the nearest valid name.
- `tokenloom schema` prints the JSON Schema.

| section | what it declares |
|---|---|
"""

SETTINGS = {
    "source": ("Settings of the source", ["dataset"]),
    "prompts": ("Settings of tokenizer and prompts", ["tokenizer", "prompt_template"]),
    "lengths": ("Settings of lengths and batches", ["length", "dataloader"]),
    "selection": ("Settings of selection and validation", ["decontaminate", "dedup", "validation"]),
    "mixture": ("Settings of a mixture", ["mixture"]),
    "operate": ("Settings of builds and Dagster", ["compute", "schedule", "dagster"]),
    "training": ("Settings of training", ["training"]),
}
"""The pages of docs/configuration/: title and sections of the YAML."""

MIXTURE = """A list of datasets to [mix](../train/mixtures.md), instead of `dataset`, `tokenizer`, `prompt_template`,
`length`, `validation` and `keep`."""

API_HEAD = """# API reference

Every public name, and the page that describes it. `tokenloom.loaders`, `tokenloom.config` and `tokenloom.errors` never
import Dagster, datasets, transformers or pandera; `tokenloom.trainer` needs the extra `train`.

| name | import from | page |
|---|---|---|
"""

API = {
    "prepare": (
        "API: prepare",
        "Build, inspect, import and export datasets from Python, and encode rows. A `Result` is an `Ok` or an `Err`.",
        (
            "tokenloom.pipeline",
            "tokenloom.assets.building",
            "tokenloom.config",
            "tokenloom.starter",
            "tokenloom.exporters",
            "tokenloom.importers",
        ),
    ),
    "load": (
        "API: load",
        "Open datasets that tokenloom built, and read batches.",
        (
            "tokenloom.loaders.datasets",
            "tokenloom.loaders.frameworks",
            "tokenloom.loaders.reading",
            "tokenloom.loaders.token_loader",
        ),
    ),
    "collate": (
        "API: collate",
        "Make batches of your own rows, and choose a collator by task.",
        ("tokenloom.loaders.collation",),
    ),
    "any_data": (
        "API: any dataset",
        "Load datasets that tokenloom did not build, and encode rows while training.",
        (
            "tokenloom.loaders.any_dataset",
            "tokenloom.loaders.map_style",
            "tokenloom.loaders.on_the_fly",
            "tokenloom.loaders.raw_text",
        ),
    ),
    "train": ("API: train", "Train models, as `tokenloom train` does.", ("tokenloom.trainer",)),
    "operate": (
        "API: operate",
        "Embed datasets in a Dagster project.",
        ("tokenloom.assets.dagster", "tokenloom.dagster"),
    ),
    "errors": (
        "API: errors",
        "Every error that tokenloom raises, and the `Result` that holds one.",
        ("tokenloom.errors",),
    ),
}
"""The pages of docs/api/: title, purpose, and the modules that define their names."""


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
    "tokenloom.config": (config, [name for name in config.__all__ if name not in HIDDEN]),
    "tokenloom.trainer": (trainer, [name for name in trainer.__all__ if name not in config.__all__]),
    "tokenloom.dagster": (dagster, [name for name in dagster.__all__ if name not in tokenloom.__all__]),
    "tokenloom.errors": (errors, _own(errors)),
    "tokenloom.exporters.export_folder": (export_folder, ["Exported"]),
    "tokenloom.importers.imported_config": (imported_config, ["ImportedConfig"]),
    "tokenloom.starter.source_facts": (source_facts, ["Inspection"]),
}


def pages() -> dict[str, str]:
    """Return the texts of all reference pages by their path in docs/."""
    return {**configuration(), **api_reference()}


def configuration() -> dict[str, str]:
    """Return the texts of docs/configuration/."""
    describe_settings()
    fields = PipelineConfig.model_fields
    models = {name: model for name, field in fields.items() if (model := _section(field)) is not None}
    abouts = {**{name: _one_line(model.__doc__) for name, model in models.items()}, "mixture": MIXTURE}
    tables = {name: _table(_settings(name, model)) for name, model in models.items()}
    tables["mixture"] = _table(_settings("mixture", MixtureSource), MixtureConfig)
    texts, rows = {}, []
    for page, (title, sections) in SETTINGS.items():
        named = " and ".join(f"`{section}`" for section in sections).replace(" and ", ", ", len(sections) - 2)
        parts = [f"# {title}\n\nEvery setting of {named}. [All sections](README.md)\n"]
        parts += [f"\n## {section}\n\n{abouts[section]}\n\n{tables.pop(section)}" for section in sections]
        texts[f"configuration/{page}.md"] = "".join(parts)
        firsts = {name: _one_line(abouts[name]).split(". ")[0].rstrip(".") for name in sections}
        rows += [f"| [`{name}`]({page}.md#{name}) | {first}. |\n" for name, first in firsts.items()]
    assert not tables, f"SETTINGS lists no page for {', '.join(tables)}"
    top = _table((name, name, field) for name, field in fields.items() if name not in models)
    texts["configuration/README.md"] = f"{CONFIGURATION_HEAD}{''.join(rows)}\n## Top level\n\n{top}"
    return texts


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


def api_reference() -> dict[str, str]:
    """Return the texts of docs/api/."""
    texts = {page: [f"# {title}\n\n{purpose} [All names](README.md)\n"] for page, (title, purpose, _) in API.items()}
    rows = []
    for title, (module, names) in MODULES.items():
        headed = set()
        for name in names:
            value = getattr(module, name)
            page = next(page for page, (*_, homes) in API.items() if f"{value.__module__}.".startswith(_dotted(homes)))
            texts[page] += [f"\n## {title}\n"] * (page not in headed)
            headed.add(page)
            texts[page] += _entry(name, value, "###")
            rows.append(f"| [`{name}`]({page}.md#{name.lower()}) | `{title}` | {page.replace('_', ' ')} |\n")
    index = API_HEAD + "".join(sorted(rows, key=str.lower))
    return {"api/README.md": index, **{f"api/{page}.md": "\n".join(text) + "\n" for page, text in texts.items()}}


def _dotted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{name}." for name in names)


def _entry(name: str, value: Any, heading: str) -> Iterator[str]:
    yield f"{heading} `{name}`\n"
    if signature := _signature(value):
        yield f"```python\n{_wrapped(name + signature)}\n```\n"
    if doc := _doc(value):
        yield doc + "\n"
    if inspect.isclass(value):
        for member, inner in _members(value).items():
            hidden = member.startswith(("_", "model_post_init"))
            if not hidden and (shown := _member(inner)) is not None and shown.__doc__:
                yield from _entry(f"{name}.{member}", shown, "####")


def _members(kind: type) -> dict[str, Any]:
    """Return what a class defines, and what it inherits from a class that no page describes."""
    found = dict[str, Any]()
    described = [getattr(module, name) for module, names in MODULES.values() for name in names]
    elsewhere = {each for base in kind.__mro__[1:] if base in described for each in base.__mro__}
    for each in kind.__mro__:
        if each is kind or (each.__module__.startswith("tokenloom.") and each not in elsewhere):
            found |= {name: member for name, member in vars(each).items() if name not in found}
    return found


def _wrapped(signature: str) -> str:
    """Return a signature with one parameter per line if it is long."""
    if len(signature) <= WIDTH:
        return signature
    depth, start, lines = 0, 0, []
    for at, sign in enumerate(signature):
        depth += (sign in "([{") - (sign in ")]}")
        ends = depth == 0 and sign == ")"
        if (depth == 1 and sign in "(,") or ends:
            lines += [signature[start : at + (not ends)].strip()]
            start = at + (not ends)
            if ends:
                break
    return "\n    ".join(lines) + ",\n" + signature[start:]


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
    # Annotations that a module does not postpone have the full names of their classes.
    text = re.sub(r"\b(?:tokenloom|collections)(?:\.[a-z_]\w*)*\.(?=[A-Z])", "", text)
    text = re.sub(r"\bdagster(?:\.[a-z_]\w*)+\.(?=[A-Z])", "dg.", text)
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
    for name, text in pages().items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
