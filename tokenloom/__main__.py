"""`python -m tokenloom`: runs the `tokenloom` command."""

from tokenloom.cli import run

run()
