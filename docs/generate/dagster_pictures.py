"""Take the picture of Dagster's graph for docs/images/. Part of `make docs`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests"))

from support.dagster_browser import Pages, web_server  # noqa: E402
from support.dagster_project import Project  # noqa: E402
from support.html_page import browser, missing_browser  # noqa: E402
from tokenloom.assets.building.stages import STAGES  # noqa: E402

IMAGES = ROOT / "docs" / "images"
ASSETS = "/assets/quickstart"


def main() -> None:
    if why := missing_browser():
        print(f"docs/images/dagster.png is left as it is: {why}")
        return
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder))
        shutil.copytree(ROOT / "tokenloom" / "pipelines", project.pipelines)
        with web_server(project) as server, browser() as tab:
            _photograph(project, Pages(server, tab))


def _photograph(project: Project, pages: Pages) -> None:
    pages.open(f"{ASSETS}/source")
    pages.click("Observe")
    pages.wait(pages.text, lambda text: "Latest observation" in text and "Never observed" not in text)
    pages.open("/locations/tokenloom/asset-groups/quickstart/lineage", 2700, 600)
    pages.click(f"Materialize all ({len(STAGES)})")
    pages.wait(pages.graph, lambda graph: graph and all("Materialized" in graph[stage] for stage in STAGES))
    pages.tab.picture(IMAGES / "dagster.png", "document.querySelector('svg foreignObject').closest('svg')")


if __name__ == "__main__":
    main()
