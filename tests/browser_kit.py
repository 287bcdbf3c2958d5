"""A headless Chromium, driven through the DevTools protocol: clicks, keys, screenshots, and what a page logged or requested."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
LIMIT_S = 60.0
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0"),
)


class NavigatedError(Exception):
    """The page was left before a script ended."""


class Tab:
    """One page of a browser.

    Attributes
    ----------
    errors : messages of the console of level error, exceptions, and violations of the content security policy.
    warnings : messages of the console of level warning.
    requests : URLs that the page requested.
    """

    def __init__(self, socket: Any, session: str) -> None:
        self._socket, self._session, self._numbers = socket, session, itertools.count(1)
        self._features: dict[str, str] = {}
        self._loaded = False
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "sessionId": self._session, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=LIMIT_S))
            if message.get("id") == number and message.get("sessionId") == self._session:
                if "error" in message:
                    kind = NavigatedError if "navigated" in message["error"]["message"] else AssertionError
                    raise kind(message["error"])
                return dict(message["result"])
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert"):
                self.errors.append(json.dumps(params["args"]))
            case "Runtime.consoleAPICalled" if params["type"] == "warning":
                self.warnings.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                found = self.errors if params["entry"]["level"] == "error" else self.warnings
                found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Page.loadEventFired":
                self._loaded = True

    def open(self, url: str) -> None:
        """Load a page."""
        answer = self.call("Page.navigate", url=url)
        assert "errorText" not in answer, f"{url}: {answer['errorText']}"

    def load(self, url: str) -> None:
        """Load a page with all of its files; forget the messages and requests of the page before."""
        self._loaded, self.errors, self.warnings, self.requests = False, [], [], []
        self.open(url)
        while not self._loaded:
            self._note(json.loads(self._socket.recv(timeout=LIMIT_S)))

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript; a promise is awaited."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, condition: str, limit_s: float = LIMIT_S) -> Any:
        """Wait until an expression is true, on this page or on one that follows it, and return its value."""
        never = json.dumps(f"never true: {condition}\n")
        poll = f"""new Promise((found, failed) => {{
              const end = performance.now() + {1000 * limit_s};
              const look = () => {{
                let value; try {{ value = {condition}; }} catch (error) {{ value = false; }}
                if (value) found(value);
                else if (performance.now() > end) failed(new Error({never} + document.body.innerText));
                else setTimeout(look, 20);
              }};
              look();
            }})"""
        while True:
            try:
                return self.evaluate(poll)
            except NavigatedError:
                continue

    def text(self, selector: str) -> str:
        """Return the visible text of an element."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, text: str) -> None:
        """Click with the mouse on the visible button with this text."""
        self._click(f"[...document.querySelectorAll('button')].find(each => each.textContent === {json.dumps(text)})")

    def click_on(self, selector: str) -> None:
        """Click with the mouse on the first element of a CSS selector."""
        self._click(f"document.querySelector({json.dumps(selector)})")

    def _click(self, found: str) -> None:
        self.until(f"{found} && !{found}.disabled")
        x, y = self.evaluate(
            f"(() => {{ const b = {found}; b.scrollIntoView({{block: 'center'}}); const r = b.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            code = {"Enter": 13, "Tab": 9}.get(key, 0)
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def type(self, text: str) -> None:
        """Insert a text into the input that has the focus."""
        self.call("Input.insertText", text=text)

    def size(self, width: int, height: int = 900) -> None:
        """Set the size of the window in pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, **features: str) -> None:
        """Set media features, e.g. ``prefers_color_scheme="dark"``; those of earlier calls stay."""
        self._features |= features
        values = [{"name": name.replace("_", "-"), "value": value} for name, value in self._features.items()]
        self.call("Emulation.setEmulatedMedia", features=values)

    def screenshot(self, file: Path) -> None:
        """Write a picture of the whole page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        file.write_bytes(base64.b64decode(data))


@contextmanager
def browser(profile: Path) -> Iterator[Tab]:
    """Start Chromium with an empty profile, and yield its page; skip the test if there is no Chromium."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    client = pytest.importorskip(
        "websockets.sync.client", reason="needs websockets: pip install 'chimera-dml[federation]'"
    )
    command = [CHROMIUM, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert process.stderr is not None
        address = next(
            match[1] for line in process.stderr if (match := re.search(r"DevTools listening on (ws://\S+)", line))
        )
        with client.connect(address, max_size=None, proxy=None) as socket:
            yield _tab(socket)
    finally:
        process.terminate()
        process.wait(LIMIT_S)
        process.stderr.close()


def _tab(socket: Any) -> Tab:
    def call(method: str, **params: Any) -> dict[str, Any]:
        socket.send(json.dumps({"id": 0, "method": method, "params": params}))
        while (message := json.loads(socket.recv(timeout=LIMIT_S))).get("id") != 0:
            pass
        return dict(message["result"])

    target = call("Target.createTarget", url="about:blank")["targetId"]
    return Tab(socket, call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
