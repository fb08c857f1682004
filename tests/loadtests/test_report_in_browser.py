"""Does the page show in a real browser: dark and light, wide and narrow, without a complaint?

Needs Chromium: the system's, or Playwright's own (`playwright install chromium`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtests.report import compared
from loadtests.report.html import write
from loadtests.results.compare import compare

pytestmark = pytest.mark.integration

LONG = "a tenant whose name is far longer than anybody would like to read " * 3


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="no Playwright to drive a browser")
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    options = {"args": ["--no-sandbox"] if os.geteuid() == 0 else []}
    with api.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=found, **options)
        except api.Error as error:
            pytest.skip(f"no browser to look at the page with: {str(error).splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture(params=["one run", "two runs"])
def address(request: pytest.FixtureRequest, make_record, tmp_path: Path) -> str:
    record = make_record(streams=True, command="headrace load " + "x" * 300, about=LONG)
    record.cells[LONG] = record.cells["crawl"]
    if request.param == "one run":
        write(record, tmp_path / "a.html")
    else:
        compared.write(compare(record, make_record(seed=2, machine=LONG)), tmp_path / "a.html")
    return (tmp_path / "a.html").as_uri()


def opened(browser: Any, address: str, width: int, scheme: str) -> tuple[Any, list[str]]:
    complaints: list[str] = []
    view = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    view.on("console", lambda message: complaints.append(message.text))
    view.on("pageerror", lambda error: complaints.append(str(error)))
    view.on("request", lambda asked: complaints.append(asked.url) if asked.url != address else None)
    view.goto(address)
    return view, complaints


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_fits_the_screen_without_a_complaint(
    browser: Any, address: str, width: int, scheme: str
) -> None:
    view, complaints = opened(browser, address, width, scheme)
    assert complaints == []
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    assert view.locator("figure svg.plot").count() >= 8


def test_text_stays_inside_of_its_picture(browser: Any, address: str) -> None:
    view, _ = opened(browser, address, 1280, "light")
    clipped = """[...document.querySelectorAll('svg.plot text')].filter(text => {
        const box = text.getBoundingClientRect();
        const room = text.ownerSVGElement.getBoundingClientRect();
        return box.left < room.left - 1 || box.right > room.right + 1
            || box.top < room.top - 1 || box.bottom > room.bottom + 1;
    }).map(text => text.textContent)"""
    assert view.evaluate(clipped) == []


def test_dark_is_dark_and_paper_is_light(browser: Any, address: str) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light, _ = opened(browser, address, 1280, "light")
    dark, _ = opened(browser, address, 1280, "dark")
    assert light.evaluate(background) == "rgb(255, 255, 255)"
    assert dark.evaluate(background) != "rgb(255, 255, 255)"
    dark.emulate_media(media="print", color_scheme="dark")
    assert dark.evaluate(background) == "rgb(255, 255, 255)"


def test_tables_fit_on_paper(browser: Any, make_record, tmp_path: Path) -> None:
    write(make_record(streams=True), tmp_path / "a.html")
    view, _ = opened(browser, (tmp_path / "a.html").as_uri(), 700, "dark")
    view.emulate_media(media="print")
    widest = "Math.max(...[...document.querySelectorAll('table')].map(t => t.offsetWidth))"
    assert view.evaluate(widest) <= 700
