"""A real browser, if there is one: opens pages, runs scripts, presses keys and takes pictures."""

from __future__ import annotations

import base64
import json
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from support.free_port import free_port
from support.processes import DEADLINE, finish, started
from support.waiting import listens, until


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
        with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
            return json.load(answer)["value"]


@contextmanager
def browser() -> Iterator[Browser]:
    """Yield a browser, which ends with the block."""
    port = free_port()
    with started(["chromedriver", f"--port={port}"], stdout=DEVNULL) as driver:
        until(lambda: listens(port))
        tab = Browser(f"http://127.0.0.1:{port}")
        try:
            yield tab
        finally:
            tab.quit()
            driver.terminate()
            finish(driver)
