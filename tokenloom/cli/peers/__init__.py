"""Reads configurations of other tools, for `tokenloom import`: one module per tool, and tables of their keys."""
