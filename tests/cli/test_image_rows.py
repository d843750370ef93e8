"""Rows with images in commands: what `preview`, its page, `build` and `inspect` show of them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

pytest.importorskip("transformers")
pytest.importorskip("PIL")

from support.browsers import browser, missing_browser
from support.html_page import Element, parsed
from support.image_rows import Oracle, write_lines, write_pictures, write_yaml
from support.soak import machine
from support.terminal import run_here

HOSTILE = "</span><img src=x onerror=window.evil=1>.png"
NEEDED = "set tokenizer.processor"


def row(number: int, *paths: str) -> dict[str, Any]:
    parts: list[dict[str, str]] = [{"type": "image", "path": path} for path in paths]
    said = {"role": "user", "content": [*parts, {"type": "text", "text": f"What is {number}?"}]}
    return {"messages": [said, {"role": "assistant", "content": f"It is {number}."}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built dataset of rows with one to three images, one of whose paths is hostile."""
    folder = tmp_path_factory.mktemp("images")
    write_pictures(folder, 12)
    rows = [row(n, *(f"pictures/{(n + more) % 12}.png" for more in range(1 + n % 3))) for n in range(30)]
    rows[4] = row(4, HOSTILE)
    write_lines(folder / "rows.jsonl", rows)
    processor = Oracle("qwen2_vl", "parts").save(folder / "processor")
    write_yaml(folder, "rows.jsonl", processor, validation={"max_reject_fraction": 0.5})
    done = run_here("build", "rows.yaml", "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    (folder / "build.json").write_text(done.stdout)
    (folder / "build.txt").write_text(done.stderr)
    return folder


def page(folder: Path, *rows: int) -> Element:
    done = run_here("preview", "rows.yaml", "--row", *rows, "--html", "page.html", folder=folder)
    assert done.returncode == 0, done.stderr
    return parsed((folder / "page.html").read_text())


def test_a_build_counts_different_images_and_their_bytes(folder: Path) -> None:
    size = sum(path.stat().st_size for path in (folder / "pictures").iterdir())
    (media,) = (
        stage for stage in json.loads((folder / "build.json").read_text())["stages"] if stage["name"] == "media"
    )
    uses = sum(1 + n % 3 for n in range(30)) - (1 + 4 % 3)
    assert (media["images"], media["image_bytes"], media["images_shared"]) == (12, size, uses - 12)
    text = (folder / "build.txt").read_text()
    assert re.search(
        rf"\n12 different images, [\d.]+ [KM]iB; {uses - 12} further uses of them are not stored again\n", text
    )
    assert "1 × image_missing in images" in text


def test_the_terminal_shows_an_image_as_one_mark(folder: Path) -> None:
    shown = run_here("preview", "rows.yaml", "--row", 2, 4, folder=folder).stdout
    assert len(re.findall(r"\[image \d+×\d+,\s[│\s]*\d+\s[│\s]*tokens?\]", shown)) == 3
    assert "image_pad" not in shown and "rejected by media: image_missing" in shown


def test_the_page_has_thumbnails_inline(folder: Path) -> None:
    html = page(folder, 2, 3, 4)
    thumbnails = html.all("img")
    assert len(thumbnails) == 4 and all(found.attributes["src"].startswith("data:image/") for found in thumbnails)
    assert next(found.text for found in html.all("span", **{"class": "image masked"})).startswith("[image ")
    (policy,) = html.all("meta", http_equiv="Content-Security-Policy")
    assert "; img-src data:; " in policy.attributes["content"] and "default-src 'none'" in policy.attributes["content"]
    assert HOSTILE in html.all("article")[2].text
    without = page(folder, 4)
    (policy,) = without.all("meta", http_equiv="Content-Security-Policy")
    assert "img-src" not in policy.attributes["content"] and not without.all("img")


def test_the_page_shows_the_mark_of_an_image_that_is_gone(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, copy := tmp_path / "copy")
    for path in (copy / "store" / "media").rglob("*"):
        if path.is_file():
            path.unlink()
    (first, *_) = page(copy, 2).all("article")
    assert first.text.count("[image ") == 3 and not first.all("img")


@machine("browser")
def test_in_a_browser_thumbnails_are_shown(folder: Path) -> None:
    if why := missing_browser():
        pytest.skip(f"needs a browser: {why}")
    page(folder, 2, 4)
    with browser() as tab:
        for width in (390, 1280):
            tab.open(folder / "page.html", width)
            widths = tab.run("return [...document.querySelectorAll('img')].map(image => image.naturalWidth)")
            assert len(widths) == 3 and all(0 < found <= 160 for found in widths)
            assert tab.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
            assert tab.run("return window.evil === undefined")
        assert tab.messages() == []


def layouts(folder: Path) -> dict[str, str]:
    """The same images in several layouts; returns the column that each has them in."""
    write_pictures(folder, 4)
    paths = [f"pictures/{n}.png" for n in range(4)]
    asked = {"prompt": "What is on the picture?"}
    write_lines(folder / "parts.jsonl", [row(n, path) for n, path in enumerate(paths)])
    write_lines(folder / "urls.jsonl", [
        {"messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": path}}]},
            {"role": "assistant", "content": f"It is {n}."},
        ]}
        for n, path in enumerate(paths)
    ])  # fmt: skip
    rows = [asked | {"completion": f"It is {n}."} for n in range(4)]
    write_lines(folder / "paths.jsonl", [one | {"images": [path]} for one, path in zip(rows, paths, strict=True)])
    images = [{"bytes": (folder / path).read_bytes(), "path": path} for path in paths]
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.Table.from_pylist(rows)
    pq.write_table(table.append_column("image", pa.array(images, struct)), folder / "structs.parquet")
    pq.write_table(table.append_column("photo", pa.array(images, struct)), folder / "photos.parquet")
    return {
        "parts.jsonl": "messages", "urls.jsonl": "messages", "paths.jsonl": "images", "structs.parquet": "image",
        "photos.parquet": "photo",
    }  # fmt: skip


def test_inspect_says_which_columns_have_images_and_what_they_need(tmp_path: Path) -> None:
    for name, column in layouts(tmp_path).items():
        done = run_here("inspect", name, "--json", "--out", f"{name}.yaml", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["images"] == [column], name
        assert f"The rows have images, in {column}: {NEEDED}" in done.stderr, name
        text = (tmp_path / f"{name}.yaml").read_text()
        assert re.search(r"^(# )?  # processor: <folder or hub id>  # ", text, re.MULTILINE), name
    write_lines(tmp_path / "text.jsonl", [{"prompt": "a", "completion": "b", "image": "a picture of a cat"}])
    assert json.loads(run_here("inspect", "text.jsonl", "--json", folder=tmp_path).stdout)["images"] == []


def test_a_build_without_a_processor_says_what_is_missing(tmp_path: Path) -> None:
    layouts(tmp_path)
    for name in ("parts.jsonl", "paths.jsonl", "structs.parquet"):
        tokenizer = {"train": {"vocab_size": 300}, "special_tokens": {"eos": "</s>"}}
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump({"dataset": {"name": name}, "tokenizer": tokenizer}))
        done = run_here("build", path, folder=tmp_path)
        assert done.returncode and "tokenizer.processor" in done.stderr, name


def test_inspect_of_a_yaml_with_a_processor_keeps_it(tmp_path: Path) -> None:
    names = layouts(tmp_path)
    processor = Oracle("qwen2_vl", "parts").save(tmp_path / "processor")
    for name in names:
        if name == "photos.parquet":
            continue
        (tmp_path / "out").mkdir(exist_ok=True)
        path = write_yaml(tmp_path, name, processor, "declared")
        done = run_here("inspect", path, "--out", f"out/{name}.yaml", folder=tmp_path)
        assert done.returncode == 0 and "The rows have images" not in done.stderr + done.stdout, name
        assert re.search(r"\[image \d+×\d+\]", done.stdout), name
        built = run_here("build", f"out/{name}.yaml", folder=tmp_path)
        assert built.returncode == 0 and "4 different images" in built.stdout, built.stderr


def test_inspect_of_a_yaml_names_its_folder_of_images_as_seen_from_the_new_one(tmp_path: Path) -> None:
    lake, out = tmp_path / "lake", tmp_path / "out"
    write_pictures(lake / "photos", 2)
    write_lines(lake / "rows.jsonl", [row(n, f"pictures/{n}.png") for n in range(2)])
    processor = Oracle("qwen2_vl", "parts").save(tmp_path / "processor")
    write_yaml(lake, "rows.jsonl", processor, dataset={"media": {"folder": "photos"}})
    out.mkdir()
    done = run_here("inspect", "lake/rows.yaml", "--out", "out/rows.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    named = yaml.safe_load((out / "rows.yaml").read_text())["dataset"]["media"]["folder"]
    assert (out / named).resolve() == lake / "photos"
