"""The `tokenloom` command, one module per subcommand. Importing it is cheap; commands import what they need."""

from tokenloom.cli.main import main, run

__all__ = ["main", "run"]
