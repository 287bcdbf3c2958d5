"""Defects of a page's layout that a browser measures: scrolling to the side, broken words, clipped text."""

from __future__ import annotations

import json
from pathlib import Path

from browser_kit import Tab

_SCROLLS = (
    "[document.documentElement.scrollWidth - innerWidth].filter(excess => excess > 0).map(excess => `${excess} px`)"
)
_BROKEN = """(() => {
  const found = [];
  for (const cell of document.querySelectorAll('th, td, dt, dd, li, figcaption, .actor, p')) {
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      for (const word of walker.currentNode.data.matchAll(/[\\w.,%µ×]{2,20}/g)) {
        const range = document.createRange();
        range.setStart(walker.currentNode, word.index);
        range.setEnd(walker.currentNode, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) found.push(word[0]);
      }
    }
  }
  return [...new Set(found)];
})()"""
_CLIPPED = """(() => {
  const found = [...document.querySelectorAll('.actor, .card dt')].filter(e => e.scrollWidth > e.clientWidth);
  for (const text of document.querySelectorAll('svg text')) {
    const box = text.getBoundingClientRect(), drawing = text.ownerSVGElement.getBoundingClientRect();
    const outside = box.left < drawing.left - 1 || box.right > drawing.right + 1 || box.bottom > drawing.bottom + 1;
    if (box.width && outside) found.push(text);
  }
  return found.map(e => e.textContent);
})()"""


def defects(tab: Tab, page: Path, widths: tuple[int, ...] = (1280, 400)) -> list[str]:
    """Return the defects of a page of a file in windows of these widths, in pixels."""
    found = []
    for width in widths:
        tab.size(width)
        tab.load(page.resolve().as_uri())
        for kind, script in {"scrolls": _SCROLLS, "broken": _BROKEN, "clipped": _CLIPPED}.items():
            found += [f"{width} px, {kind}: {json.dumps(each)}" for each in tab.evaluate(script)]
    return found
