"""The page in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polyphony.report import Run, comparison, report_of

VISIBLE = """
(() => [...document.querySelectorAll("svg[role=img]")].map(svg => {
  const box = svg.getBoundingClientRect();
  const ink = [...svg.querySelectorAll("path, use, image, text")].filter(part => {
    const style = getComputedStyle(part);
    return part.getBoundingClientRect().width > 0 && style.visibility === "visible" && style.opacity > 0;
  });
  return {name: svg.getAttribute("aria-label"), left: box.left, right: box.right,
          width: box.width, height: box.height, parts: ink.length};
}))()
"""
LETTERS = """
(() => [...document.querySelectorAll("svg[role=img] text")].map(
  text => parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getScreenCTM().a))()
"""
CONTRAST = """
(() => {
  const numbers = colour => colour.match(/[0-9.]+/g).slice(0, 3).map(Number);
  const light = colour => {
    const [r, g, b] = numbers(colour).map(v => v / 255).map(
      v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const against = colour => {
    const [low, high] = [light(colour), paper].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const texts = [...document.querySelectorAll("p, th, td, figcaption, h1, h2, h3, h4, dt, dd")];
  const drawn = [...document.querySelectorAll("svg[role=img] text")];
  return {
    text: Math.min(...texts.map(part => against(getComputedStyle(part).color))),
    drawn: Math.min(...drawn.map(part => against(getComputedStyle(part).fill))),
  };
})()
"""


@pytest.fixture
def pages(reported: Path, many: Path, maker: Any, tmp_path: Path) -> dict[str, Path]:
    both = [Run.open(reported), Run.open(maker.write(tmp_path / "other", "other"))]
    made = {"comparison": comparison(both), "sixteen methods": report_of(Run.open(many))}
    for name, report in made.items():
        (tmp_path / f"{name}.html").write_text(report.html)
    return {"run": reported / "report.html"} | {name: tmp_path / f"{name}.html" for name in made}


def test_every_figure_is_seen_at_any_width_in_light_and_dark(browser: Any, pages: dict[str, Path]):
    for name, page in pages.items():
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                where = f"{name} at {width} pixels in {scheme}"
                browser.open(page, width, scheme)
                look_for_trouble(browser, page, where)
                look_at_figures(browser, width, where)
                contrast = browser.value(CONTRAST)
                assert contrast["text"] >= 4.5, (where, contrast)
                assert contrast["drawn"] >= 3.0, (where, contrast)


def look_for_trouble(browser: Any, page: Path, where: str) -> None:
    """No message on the console, no request but for the page itself, no sideways scrolling."""
    methods = [event["method"] for event in browser.events]
    assert not {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"} & set(methods), where
    requests = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    fetched = [url for url in requests if not url.startswith("data:")]
    assert fetched == [page.resolve().as_uri()], where
    wide = browser.value("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide[0] <= wide[1], (where, wide)


def look_at_figures(browser: Any, width: int, where: str) -> None:
    """Every drawing has a size, lies on the page, has something in it, and letters one can read."""
    seen = browser.value(VISIBLE)
    assert len(seen) == browser.value('document.querySelectorAll(".panel").length')
    for figure in seen:
        assert figure["width"] > 200, (where, figure)
        assert figure["height"] > 150, (where, figure)
        assert figure["left"] >= 0, (where, figure)
        assert figure["right"] <= width, (where, figure)
        assert figure["parts"] > 8, (where, figure)
    assert min(browser.value(LETTERS)) >= 8.5, where


def test_light_and_dark_differ_and_print_is_light(browser: Any, reported: Path):
    background = "getComputedStyle(document.body).backgroundColor"
    axis = 'getComputedStyle(document.querySelector("svg[role=img] text")).fill'
    colours = {}
    for scheme in ("light", "dark"):
        browser.open(reported / "report.html", 1280, scheme)
        colours[scheme] = (browser.value(background), browser.value(axis))
    assert colours["light"][0] != colours["dark"][0]
    assert colours["light"][1] != colours["dark"][1]
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    browser.call("Emulation.setEmulatedMedia", media="print", features=[dark])
    assert browser.value(axis) == colours["light"][1]
    assert browser.value(background) == "rgb(255, 255, 255)"
    browser.call("Emulation.setEmulatedMedia", media="", features=[])
