"""Draw docs/images/preview.svg: `tokenloom preview` of rows of the quickstart. Part of `make docs`."""

from __future__ import annotations

import io
import re
import tempfile
from pathlib import Path

from rich.console import Console

from tokenloom import DataPipeline
from tokenloom.assets.shown_rows.token_runs import RowReader
from tokenloom.cli.tables import print_preview

ROOT = Path(__file__).parents[2]
ROWS = (3, 12)
TITLE = f"tokenloom preview tokenloom/pipelines/quickstart.yaml --row {' '.join(map(str, ROWS))}"


def main() -> None:
    with tempfile.TemporaryDirectory() as store:
        pipeline = DataPipeline.from_config(ROOT / "tokenloom" / "pipelines" / "quickstart.yaml", store=store).unwrap()
        pipeline.build().unwrap()
        reader = RowReader(pipeline.store, "quickstart")
        console = Console(record=True, width=92, file=io.StringIO(), force_terminal=True)
        print_preview(console, "quickstart", [reader.read(row) for row in ROWS])
    svg = console.export_svg(title=TITLE, unique_id="preview")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # loads no fonts from the network
    (ROOT / "docs" / "images" / "preview.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
