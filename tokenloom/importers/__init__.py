"""The importers: configurations of other tools turned into YAML files.

The tools are listed here by name, so that listing them loads none. What becomes of their keys is in `keys.yaml`.
"""

TOOLS = ("axolotl", "llamafactory", "trl")
"""Each is a module of this package with two functions, `read` and `mixture`, and a section of `keys.yaml`."""
