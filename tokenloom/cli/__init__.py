"""The `tokenloom` command, one module per subcommand."""

from tokenloom.cli.main import main

__all__ = ["main"]
