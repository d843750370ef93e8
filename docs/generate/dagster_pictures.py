"""Take the pictures of Dagster's pages for docs/images/. Part of `make docs`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests"))

from support.browsers import browser, missing_browser  # noqa: E402
from support.dagster_browser import Pages, web_server  # noqa: E402
from support.dagster_project import Project  # noqa: E402
from support.datasets_on_disk import STAGES  # noqa: E402

IMAGES = ROOT / "docs" / "images"
ASSETS = "/assets/quickstart"
ROWS = "samples/quickstart.jsonl"
MATERIALIZE = f"Materialize all ({len(STAGES)})"
METADATA = "[...document.querySelectorAll('table')].find((table) => table.innerText.includes('trained_fraction'))"
ENTRIES = 5
"""Number of entries of metadata in the picture."""


def main() -> None:
    if why := missing_browser():
        print(f"Dagster's pictures in docs/images/ are left as they are: {why}")
        return
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder))
        shutil.copytree(ROOT / "tokenloom" / "pipelines", project.pipelines)
        rows = project.pipelines / ROWS
        lines = rows.read_text(encoding="utf-8").splitlines(keepends=True)
        rows.write_text("".join(sorted(lines, key=lambda line: not line.isascii())), encoding="utf-8")  # for the fonts
        with web_server(project) as server, browser() as tab:
            _photograph(project, Pages(server, tab))


def _photograph(project: Project, pages: Pages) -> None:
    pages.open(f"{ASSETS}/source")
    pages.click_to_run("Observe")
    pages.open("/locations/tokenloom/asset-groups/quickstart/lineage", 2700, 600)
    pages.click_to_run(MATERIALIZE)
    pages.wait(pages.graph, lambda graph: graph and all("Materialized" in graph[stage] for stage in STAGES))
    pages.tab.picture(IMAGES / "dagster.png", "document.querySelector('svg foreignObject').closest('svg')")

    pages.open(f"{ASSETS}/sequences", 1900, 1200)
    pages.shows("⟦", "line: max_length")
    pages.tab.run(
        f"const rows = [...{METADATA}.querySelectorAll('tr')]; rows.slice({ENTRIES + 1}).map((row) => row.remove())"
    )
    pages.tab.picture(IMAGES / "dagster_sequences.png", METADATA)

    with (project.pipelines / ROWS).open("a", encoding="utf-8") as rows:
        rows.write('{"messages": \n' * 30)
    pages.open("/locations/tokenloom/asset-groups/quickstart/lineage")
    pages.click_to_run(MATERIALIZE)
    pages.open(f"{ASSETS}/raw?view=events", 1900, 1000)
    pages.shows("rows rejected", "each line must be one JSON object")
    pages.tab.picture(IMAGES / "dagster_rejects.png", "document.body")


if __name__ == "__main__":
    main()
