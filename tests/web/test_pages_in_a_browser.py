"""All pages share one look: enough contrast, names of controls, no scrolling to the side, no error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from browser_kit import Tab, browser
from chimera.web.app import create_app, listen, serve
from chimera.web.folder import Access
from chimera.web.page.document import Document, document
from web.live_kit import append, calls_of, measured, page_of, write_run

CONTRAST = """(() => {
  const numbers = color => (color.match(/[\\d.]+/g) || []).map(Number);
  const linear = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const color = numbers(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || e.disabled || !e.getClientRects().length || e.closest('noscript, script, option, .graph')) continue;
    const style = getComputedStyle(e), color = e instanceof SVGElement ? style.fill : style.color;
    const a = light(numbers(color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${e.tagName} ${e.className} ${e.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return poor;
})()"""
NAMELESS = """[...document.querySelectorAll('button, input, select, progress, svg[role=img], [tabindex]')]
  .filter(e => e.getClientRects().length)
  .filter(e => !(e.textContent.trim() || e.getAttribute('aria-label') || (e.labels && e.labels.length)))
  .map(e => e.outerHTML.slice(0, 100))"""
HEADINGS = (
    "[...document.querySelectorAll('h1, h2, h3')].filter(e => e.getClientRects().length).map(e => Number(e.tagName[1]))"
)
PAGES = {
    "Chimera cluster": ("chimera.jobs.daemon.page", ("base.js", "charts.js"), "this cluster asks for its token"),
    "Chimera hub": ("chimera.federation.hub.page", ("base.js",), "this page asks for its token"),
    "Chimera inference": ("chimera.inference.page", ("base.js",), "this cluster asks for its token"),
}


@contextmanager
def bare(page: Document) -> Iterator[str]:
    """Serve a page whose data need a token that the test does not have."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            whole = self.path == "/"
            self.send_response(200 if whole else 401)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Security-Policy", page.policy)
            self.end_headers()
            self.wfile.write(page.content if whole else b"")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def inspected(tab: Tab) -> None:
    """Check contrast, names, headings and width, in light and dark, wide and narrow."""
    for scheme in ("light", "dark"):
        tab.media(prefers_color_scheme=scheme)
        assert tab.until(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
        assert tab.evaluate(CONTRAST) == []
    assert tab.evaluate(NAMELESS) == []
    levels = tab.evaluate(HEADINGS)
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for width in (1280, 400):
        tab.size(width)
        tab.until(f"innerWidth === {width}")
        assert tab.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.long
@pytest.mark.parametrize("title", PAGES)
def test_a_page_of_a_server_can_be_read_by_all(title: str, tmp_path: Path) -> None:
    package, shared, asks = PAGES[title]
    page = document(package, title, scripts=("page.js",), shared=shared)
    with bare(page) as address, browser(tmp_path / "profile") as tab:
        tab.open(address)
        tab.until(
            f"document.querySelector('#status').innerText === '{asks}' && !document.querySelector('#lock').hidden"
        )
        assert tab.evaluate("document.title") == title
        inspected(tab)
        assert [error for error in tab.errors if "401" not in error] == []
        assert all(url.startswith((address, "data:")) for url in tab.requests)


@pytest.mark.long
def test_the_page_of_routes_can_be_read_by_all_and_sends_requests(tmp_path: Path) -> None:
    access, listener = Access("right"), listen("127.0.0.1", 0)
    app = create_app(title="chimera test", settings=access, routers=[], about={"kind": "test"})
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    options: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "settings": access, "listener": listener, "logs": False}
    server = threading.Thread(target=serve, args=(app,), kwargs=options, daemon=True)
    server.start()
    with browser(tmp_path / "profile") as tab:
        tab.open(f"{address}docs")
        tab.until("document.querySelector('#about').innerText.includes('requires its token')")
        token = "document.querySelector('#token')"
        tab.evaluate(f"{token}.value = 'right', {token}.dispatchEvent(new Event('change'))")
        tab.until("document.title === 'chimera test' && document.querySelector('#routes > details')")
        tab.evaluate("document.querySelectorAll('#routes > details').forEach(each => { each.open = true; })")
        tab.click("Send")  # of /health, the first route
        tab.until("document.querySelector('#routes').innerText.includes('200 OK')")
        inspected(tab)
        assert [error for error in tab.errors if "401" not in error] == []
        assert all(url.startswith((address, "data:")) for url in tab.requests)
    app.state.stop()
    server.join(30)


@pytest.mark.long
@pytest.mark.takes("it starts a browser")
def test_the_live_page_can_be_read_by_all(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    lost = [
        {"event": name, "seconds": 0.04, "round": 4, "actor": "worker 1", "detail": "killed"}
        for name in ("fault", "worker lost")
    ]
    append(run / "events.jsonl", lost)
    with page_of(run) as page, browser(tmp_path / "profile") as tab:
        tab.media(prefers_reduced_motion="reduce")
        tab.open(page.link)
        tab.until("document.querySelectorAll('.lane').length === 4")
        tab.click("Slow motion")
        tab.click("Step")
        tab.until("views[0].motion.place === 1")
        inspected(tab)
        tab.click("Play")  # by whole events, since the user prefers reduced motion
        tab.until("views[0].motion.place === 3 && views[0].motion.time === views[0].motion.calls.events[2].time")
        assert tab.errors == []


HOSTILE = [
    "[]", "null", '"text"', "7", "{",
    '{"round": {}, "seconds": [], "loss": 1}',
    '{"round": "x", "seconds": null, "accuracy": 1e999}',
    '{"__proto__": {"polluted": 1}, "round": 3, "seconds": 0.03, "constructor": 2}',
    '{"round": 4, "clients": {"a": {"loss": "x"}, "b": null}}',
    '{"actor": 5, "call": [], "start_s": "x", "end_s": 1}',
    '{"actor": "worker 0", "call": "c", "start_s": 1e308, "end_s": -1e308, "bytes_in": 1e308}',
    '{"actor": "worker 1e9", "call": "c", "start_s": -5, "end_s": 0.01, "transfer_s": -1, "wait_s": 1e308, "bytes_out": -7}',
    '{"actor": "\\n</script>", "call": "c", "start_s": 0.02, "end_s": 0.021}',
    '{"event": null, "seconds": null, "actor": {}}',
    '{"event": "worker lost", "seconds": "x", "round": [], "actor": "worker 0", "detail": {}}',
    '{"event": "worker lost", "seconds": -1e308, "round": 1, "actor": "worker 2"}',
]  # fmt: skip


@pytest.mark.long
@pytest.mark.takes("it starts a browser")
def test_hostile_rows_break_no_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for name in ("metrics", "events", "trace"):
        with (run / f"{name}.jsonl").open("a") as file:
            file.writelines(f"{line}\n" for line in HOSTILE)
    append(run / "trace.jsonl", calls_of(5))
    append(run / "metrics.jsonl", [measured(6)])
    with page_of(run) as page, browser(tmp_path / "profile") as tab:
        tab.open(page.link)
        tab.until("views.length && views[0].run.last.round === 6")
        tab.until("document.querySelector('#status').innerText.startsWith('live')")
        tab.until("document.querySelectorAll('.lane').length >= 4")
        tab.click("Slow motion")
        for _ in range(30):
            tab.click("Step")
        tab.until("views[0].motion.place === 30")
        assert tab.evaluate("({}).polluted") is None
        assert tab.errors == []
