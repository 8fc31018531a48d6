"""The demo's report in a real browser, where one is installed: `.ci/browser` installs one."""

import os
from pathlib import Path

import pandas as pd
import pytest
from browser import BROWSER, open_browser
from small import ROOT

from nystromformer.benchmark.findings import new_figure
from nystromformer.files.writing import write_figure
from nystromformer.report.demo import render_page

CHECKS = (ROOT / "tests" / "support" / "page_checks.js").read_text(encoding="utf-8")
MADE = os.environ.get("NYSTROM_REPORT")
"""A report that was made already, to be checked instead of a made-up one."""


def made_up(folder: Path) -> Path:
    figure = new_figure(11.2, 4.2)
    figure.subplots().plot([1, 2, 3])
    write_figure(folder / "curves.png", figure, dpi=120)
    scores = pd.DataFrame([["nystrom-demo-conv", "16 %", "5"]], columns=["", "masked-token accuracy", "loss"])
    power = "A sentence that is so long that a window of a telephone's width cannot hold it in one line."
    (folder / "report.html").write_text(render_page(scores, power, folder / "curves.png"))
    return folder / "report.html"


@pytest.mark.skipif(BROWSER is None, reason="no browser (chromium) is installed")
def test_the_page_is_legible_and_fits(tmp_path: Path) -> None:
    page = Path(MADE) if MADE else made_up(tmp_path)
    with open_browser() as browser:
        for width in (1400, 360):
            browser.open(page.resolve().as_uri(), width, dark=False)
            assert browser.evaluate(CHECKS) == [], width
