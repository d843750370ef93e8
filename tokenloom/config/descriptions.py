"""Descriptions of settings: the docstring below each field of the schema, read from the source code.

Only the JSON Schema and the documentation need them, so that nothing else pays for reading them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache

from tokenloom.config.schema import Section


def describe_settings() -> None:
    """Give each field of each section its description."""
    _describe(Section)


def _describe(section: type[Section]) -> None:
    documented: dict[str, str] = {}
    for base in reversed(section.__mro__):
        documented |= _docstrings(base.__module__).get(base.__name__, {})
    for name, field in section.model_fields.items():
        field.description = documented.get(name)
    section.model_rebuild(force=True)
    for inner in section.__subclasses__():  # in the order of definition: a section comes after those in it
        _describe(inner)


@cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstring of each field of each class of a module."""
    if not module.startswith("tokenloom."):
        return {}
    statements = ast.parse(inspect.getsource(sys.modules[module])).body
    return {
        found.name: {
            field.target.id: inspect.cleandoc(text.value.value)
            for field, text in zip(found.body, found.body[1:], strict=False)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        }
        for found in statements
        if isinstance(found, ast.ClassDef)
    }
