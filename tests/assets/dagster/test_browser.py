"""What an operator sees and clicks in Dagster's UI: a real dagster-webserver, and its pages in a real browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.browsers import browser, missing_browser
from support.dagster_browser import Pages, web_server
from support.dagster_project import SECTIONS, new_project
from support.datasets_on_disk import STAGES
from support.soak import machine

pytestmark = machine("browser")

GRAPH = "/locations/tokenloom/asset-groups/toy/lineage"


def unsynced(pages: Pages) -> set[str]:
    return {stage for stage, text in pages.graph().items() if "Unsynced" in text}


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes to end through /proc")
def test_an_operator_watches_a_dataset_in_a_browser(tmp_path: Path) -> None:
    if why := missing_browser():
        pytest.skip(f"needs a browser: {why}")
    project = new_project(tmp_path)
    source = project.pipelines / "rows" / "a.jsonl"
    with web_server(project) as server, browser() as tab:
        pages = Pages(server, tab)

        pages.open("/assets/toy/source")
        pages.shows("Never observed")
        pages.click_to_run("Observe")
        pages.wait(pages.text, lambda text: "Never observed" not in text)

        pages.open(GRAPH)
        pages.wait(pages.graph, lambda graph: set(graph) == {"source", *STAGES})
        pages.click_to_run(f"Materialize all ({len(STAGES)})")
        pages.wait(pages.graph, lambda graph: all("Materialized" in graph[stage] for stage in STAGES))
        assert unsynced(pages) == set()

        pages.open("/assets/toy/sequences")
        pages.shows("### Square 3\nmind 3\n### Response:\n⟦9<|endoftext|>⟧", "line: max_length, 64 tokens")
        pages.wait(lambda: tab.run("return document.querySelector('img[alt=lengths]').naturalWidth"), bool)

        project.write(tokenizer={**SECTIONS["tokenizer"], "max_length": 32})
        pages.open(GRAPH)
        pages.click("Reload definitions")
        pages.wait(lambda: unsynced(pages), {"sequences"}.__eq__)

        with source.open("a") as rows:
            rows.write(json.dumps({"instruction": "Square 99", "input": "new", "output": "9801"}) + "\n")
        pages.open("/assets/toy/source")
        pages.click_to_run("Observe")
        pages.open(GRAPH)
        pages.wait(lambda: unsynced(pages), {"raw", "sequences"}.__eq__)

        with source.open("a") as rows:
            rows.write('{"instruction":\n' * 3)
        pages.click_to_run(f"Materialize all ({len(STAGES)})")
        pages.wait(pages.graph, lambda graph: "Failed" in graph["raw"])
        pages.open("/assets/toy/raw?view=events")
        pages.shows("3 of 64 rows rejected", "a.jsonl:32", "each line must be one JSON object")
