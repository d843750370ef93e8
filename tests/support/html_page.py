"""A page as the standard library's parser reads it, and a real browser, if there is one."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = {"meta", "br", "img", "input", "link", "hr"}


@dataclass(eq=False)
class Element:
    tag: str
    attributes: dict[str, str]
    content: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.text for part in self.content)

    def all(self, tag: str = "", **attributes: str) -> list[Element]:
        """Return the elements inside with a tag and attributes, in document order."""
        found = []
        for part in self.content:
            if isinstance(part, Element):
                same = all(part.attributes.get(name.replace("_", "-")) == value for name, value in attributes.items())
                found += [part] * (tag in ("", part.tag) and same) + part.all(tag, **attributes)
        return found


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.path = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.path[-1].content.append(element)
        if tag not in VOID:
            self.path.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.path[-1].tag == tag, f"</{tag}> ends <{self.path[-1].tag}>"
        self.path.pop()

    def handle_data(self, data: str) -> None:
        self.path[-1].content.append(data)


def parsed(html: str) -> Element:
    """Return the root of a page in which every element that is opened is closed."""
    parser = _Parser()
    parser.feed(html)
    parser.close()
    (root,) = parser.path
    return root


def missing_browser() -> str:
    """Return why no browser can be started, or "" if one can."""
    lacking = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    return f"{' and '.join(lacking)} not found" if lacking else ""


OPTIONS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),  # Chromium asks its maker's servers otherwise
]


class Browser:
    """A tab of Chromium, driven by the WebDriver protocol."""

    def __init__(self, url: str):
        self._url = url
        given = {"goog:chromeOptions": {"args": OPTIONS}, "goog:loggingPrefs": {"browser": "ALL"}}
        self._url += "/session/" + self._ask("/session", {"capabilities": {"alwaysMatch": given}})["sessionId"]

    def open(self, page: Path | str, width: int, height: int = 900) -> None:
        """Show a file or an address in a window of so many pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask("/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})
        self._ask("/url", {"url": page.as_uri() if isinstance(page, Path) else page})

    def run(self, script: str) -> Any:
        """Return what a script returns."""
        return self._ask("/execute/sync", {"script": script, "args": []})

    def press(self, keys: str) -> None:
        """Press keys, on the element that has the focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def picture(self, path: Path, element: str) -> None:
        """Write a PNG of the element that an expression returns."""
        found = f"const found = {element}; found.scrollIntoView({{block: 'start'}});"
        box = self.run(f"{found} return found.getBoundingClientRect().toJSON()")
        clip = {name: box[name] for name in ("x", "y", "width", "height")}
        params = {"clip": {**clip, "scale": 1}, "captureBeyondViewport": True}
        taken = self._ask("/goog/cdp/execute", {"cmd": "Page.captureScreenshot", "params": params})
        path.write_bytes(base64.b64decode(taken["data"]))

    def messages(self) -> list[str]:
        """Return what the browser wrote to its console: errors, and violations of the page's policy."""
        return [entry["message"] for entry in self._ask("/se/log", {"type": "browser"})]

    def quit(self) -> None:
        self._ask("", method="DELETE")

    def _ask(self, path: str, body: Any = None, method: str = "POST") -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]


@contextmanager
def browser() -> Iterator[Browser]:
    """Yield a browser, which ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with socket.socket() as tried:
                if not tried.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.1)
        tab = Browser(f"http://127.0.0.1:{port}")
        try:
            yield tab
        finally:
            tab.quit()
    finally:
        driver.terminate()
        driver.wait()
