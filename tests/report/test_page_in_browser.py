"""The demo's report, and the paper's page, in a real browser, where one is installed: `.ci/browser` installs one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import BROWSER, Browser, open_browser
from costs import made_up_cost
from papers import made_up_results
from small import ROOT

from nystromformer.report.cost_report import cost_findings, cost_table, draw_cost, what_is_measured
from nystromformer.report.page import PageFigures, write_page
from nystromformer.report.paper import write_paper
from nystromformer.tasks.pretraining.guess import Guess

CHECKS = (ROOT / "tests" / "support" / "page_checks.js").read_text(encoding="utf-8")
PAGE = os.environ.get("NYSTROM_REPORT")
"""A report that was made already, to be checked beside the made-up one."""
SHOTS = os.environ.get("NYSTROM_SHOTS")
"""A folder for pictures of what was seen."""

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no browser (chromium) is installed")
either_window = pytest.mark.parametrize("width", [1400, 360])
either_scheme = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    cost = made_up_cost()
    draw_cost(cost, folder / "cost.png")
    learned = PageFigures(
        [["", "masked tokens right", "times the most frequent token", "loss"], ["nystrom-demo-conv", "16 %", "4", "5"]],
        ["A sentence on the figures that is so long that a window of a telephone's width cannot hold it in one line."],
        folder / "cost.png",
    )
    costs = PageFigures(cost_table(cost), cost_findings(cost), folder / "cost.png")
    guesses = {"Returns a <mask>.": [Guess("value", 0.9), Guess("a_token_of_quite_some_length", 0.05)]}
    facts = {"encoder": "2 layers, width 128, 4 heads", "this command": "1 s"}
    write_page(folder / "report.html", learned, costs, what_is_measured(cost), guesses, facts)
    return folder / "report.html"


def problems(browser: Browser, page: Path, width: int, dark: bool) -> list[str]:
    browser.show(page, width, dark)
    complaints: list[str] = browser.evaluate(CHECKS)
    if SHOTS:
        browser.screenshot(Path(SHOTS) / f"{page.parent.name}-{width}-{'dark' if dark else 'light'}.png")
    return complaints


@either_window
@either_scheme
def test_a_page_is_legible_and_fits(browser: Browser, page: Path, width: int, dark: bool) -> None:
    assert problems(browser, page, width, dark) == []


@either_window
@either_scheme
def test_the_papers_page_is_legible_and_fits(browser: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    write_paper(made_up_results(tmp_path / "results"), tmp_path / "paper.html")
    assert problems(browser, tmp_path / "paper.html", width, dark) == []


@pytest.mark.skipif(PAGE is None, reason="NYSTROM_REPORT names no report")
@either_window
@either_scheme
def test_the_report_of_a_demo_is_legible_and_fits(browser: Browser, width: int, dark: bool) -> None:
    assert PAGE is not None
    assert problems(browser, Path(PAGE), width, dark) == []


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('<p style="width:3000px">wide</p>', "the page is 30"),
        ('<p>text</p><img alt="curves" src="data:image/png;base64,AAAA">', "a picture did not load: curves"),
        ('<p style="color:#999">pale</p>', "contrast 2."),
        ('<div style="background:#000b"><p style="color:#000">dark</p></div>', "contrast"),
        ('<p style="font-size:9px">small</p>', "text of 9px: small"),
        ("", "no text is visible"),
    ],
)
def test_what_is_wrong_is_seen(browser: Browser, tmp_path: Path, body: str, complaint: str) -> None:
    """The checks themselves: each of these pages has one fault."""
    path = tmp_path / "report.html"
    path.write_text(f"<!doctype html><style>:root {{ background: white; color: black }}</style><body>{body}</body>")
    (problem,) = problems(browser, path, 360, dark=False)
    assert complaint in problem
