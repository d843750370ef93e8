"""Files that commands write where they are told to."""

from __future__ import annotations

from pathlib import Path

from tokenloom.errors import ConfigError, Fault


def why_no_target(target: str, force: bool, as_json: bool) -> str | None:
    """Why a YAML cannot be written there."""
    path = Path(target)
    if target == "-":
        return "- writes the YAML where --json prints its object; name a file" if as_json else None
    if not target:
        return "names no file; - is stdout"
    if path.is_dir():
        return f"{target} is a folder; name a file"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    if path.exists() and not force:
        return f"{target} exists; name another file, or say --force to overwrite it"
    return None


def write_file(option: str, target: str, text: str) -> None:
    """Write a text.

    Args:
        option: what named the file.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError([Fault(option, f"cannot write {target}: {error.strerror}")]) from error
