from importlib.util import find_spec

from tokenloom.errors import missing_package

for _package in ("msgspec", "jinja2"):  # what the stages import first, and a bare install lacks
    if find_spec(_package) is None:
        raise missing_package(_package, "preparing datasets")
