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

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no browser (chromium) is installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


def write_demo(folder: Path) -> Path:
    cost = made_up_cost()
    draw_cost(cost, folder / "cost.png")
    learned = PageFigures(
        [
            ["", "masked-token accuracy", "relative to the most frequent token", "loss"],
            ["nystrom-demo-conv", "16 %", "4", "5"],
        ],
        ["A sentence on the figures that is so long that a window of a telephone's width cannot hold it in one line."],
        folder / "cost.png",
    )
    costs = PageFigures(cost_table(cost), cost_findings(cost), folder / "cost.png")
    guesses = {"Returns a <mask>.": [Guess("value", 0.9), Guess("a_token_of_quite_some_length", 0.05)]}
    facts = {"encoder": "2 layers, width 128, 4 heads", "this command": "1 s"}
    write_page(folder / "report.html", learned, costs, what_is_measured(cost), guesses, facts)
    return folder / "report.html"


def write_papers_page(folder: Path) -> Path:
    write_paper(made_up_results(folder / "results"), folder / "paper.html")
    return folder / "paper.html"


WRITE = {"demo": write_demo, "paper": write_papers_page} | ({PAGE: lambda _: Path(PAGE)} if PAGE else {})


@pytest.fixture(scope="module", params=WRITE)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return WRITE[request.param](tmp_path_factory.mktemp("page"))


def problems(browser: Browser, page: Path, width: int, dark: bool) -> list[str]:
    browser.open(page.resolve().as_uri(), width, dark)
    complaints: list[str] = browser.evaluate(CHECKS)
    return complaints


@pytest.mark.parametrize("width", [1400, 360])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_is_legible_and_fits(browser: Browser, page: Path, width: int, dark: bool) -> None:
    assert problems(browser, page, width, dark) == []


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
