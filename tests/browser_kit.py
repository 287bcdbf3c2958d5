"""A headless Chromium that tests drive by the DevTools protocol: load a page, resize it, run JavaScript, click, look."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSERS = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
HOW_TO_GET = "no browser: install chromium (apt-get install chromium), and pip install websockets"
LIMIT_S = 60
OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
]  # fmt: skip


class NavigatedError(Exception):
    """The page was left before a script ended."""


class Tab:
    """A page of the browser, and what happened in it: messages of the console, exceptions, and requests."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._number = 0
        self._events: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of a method of the protocol; note the events that arrive before it."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=LIMIT_S))
            if message.get("id") == self._number:
                if "error" in message:
                    kind = NavigatedError if "navigated" in message["error"]["message"] else AssertionError
                    raise kind(f"{method}: {message['error']}")
                return dict(message["result"])
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        self._events.append(message)
        kind, what = message.get("method"), message.get("params", {})
        if kind == "Runtime.exceptionThrown":
            details = what["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif kind == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(each.get("value", each.get("description"))) for each in what["args"]))
        elif kind == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{what['entry']['text']} {what['entry'].get('url', '')}")
        elif kind == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])

    def _wait_for(self, event: str) -> None:
        ends = time.monotonic() + LIMIT_S
        while not any(each.get("method") == event for each in self._events):
            self._note(json.loads(self._socket.recv(timeout=max(0.0, ends - time.monotonic()))))

    def open(self, url: str) -> None:
        """Load a page, with all of its files; forget the problems and requests of the page before."""
        self._events, self.problems, self.requests = [], [], []
        answer = self.call("Page.navigate", url=url)
        assert "errorText" not in answer, f"{url}: {answer['errorText']}"
        self._wait_for("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """Return the value of an expression of JavaScript; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str) -> Any:
        """Return the value of an expression once it is true, on this page or on one that follows it."""
        poll = (
            f"new Promise((found, fail) => {{ const ends = Date.now() + {LIMIT_S // 2 * 1000};"
            f" const check = () => {{ const value = ({script}); if (value) found(value);"
            " else if (Date.now() > ends) fail(new Error('not in time')); else setTimeout(check, 20); }; check(); })"
        )
        while True:
            try:
                return self.run(poll)
            except NavigatedError:
                continue

    def show(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Set the size of the window in pixels, and the colour scheme that the user prefers."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call(
            "Emulation.setEmulatedMedia", features=[scheme, {"name": "prefers-reduced-motion", "value": "reduce"}]
        )

    def click(self, selector: str) -> None:
        """Click the middle of an element, as the mouse does."""
        place = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def picture(self, path: Path) -> None:
        """Write what the window shows, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(profile: Path, program: str | None = None) -> Iterator[Tab]:
    """Start a browser whose profile is a new folder, yield its tab, and end it."""
    from websockets.sync.client import connect

    process = subprocess.Popen(
        [program or BROWSERS[0], *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    try:
        for line in process.stderr:  # ends if the browser does
            if line.startswith("DevTools listening on"):
                port = line.split("127.0.0.1:")[1].split("/")[0]
                break
        else:
            raise AssertionError("the browser ended before it listened")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=LIMIT_S) as answer:
            (page,) = [each for each in json.load(answer) if each["type"] == "page"]
        with connect(page["webSocketDebuggerUrl"], max_size=2**26, open_timeout=LIMIT_S) as socket:
            yield Tab(socket)
    finally:
        process.terminate()
        process.stderr.close()
        process.wait(LIMIT_S)
