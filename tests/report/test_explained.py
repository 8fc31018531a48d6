"""A text with the tokens shaded that a prediction went by."""

import re
from html.parser import HTMLParser

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nystromformer.report.explained import Explained, page


class _Text(HTMLParser):
    """The text of the shaded part, and the numbers of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = 0
        self.text = ""
        self.tokens: list[tuple[float, float, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "div":
            self.inside += found.get("class") == "shaded" or bool(self.inside)
        if tag == "i" and self.inside:
            numbers = re.fullmatch(r"--a:([\d.]+);--g:([\d.]+)", found["style"] or "")
            assert numbers
            self.tokens.append((float(numbers[1]), float(numbers[2]), found.get("class") == "against"))

    def handle_endtag(self, tag: str) -> None:
        self.inside -= tag == "div" and bool(self.inside)

    def handle_data(self, data: str) -> None:
        self.text += data if self.inside else ""


def parsed(content: str) -> _Text:
    reader = _Text()
    reader.feed(content)
    return reader


def explained(text: str, ends: list[int], attention: list[float], steepness: list[float]) -> Explained:
    offsets = list(zip([0, *ends[:-1]], ends, strict=True))
    names = [text[a:b] for a, b in offsets]
    return Explained(
        text, offsets, names, np.array([attention, attention], np.float32), np.array(steepness, np.float32)
    )


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=60), st.data())
def test_the_whole_text_stands_there_whatever_it_holds(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.sets(st.integers(1, len(text)), max_size=8))
    ends = sorted({*cuts, len(text)})
    content = page("a <b>", {"prediction": "<script>"}, explained(text, ends, [0.1] * len(ends), [0.0] * len(ends)))
    found = parsed(content)
    assert found.text == text
    assert len(found.tokens) == len(ends)
    assert "<script>" not in content


def test_shades_follow_the_weights() -> None:
    one = explained("good bad plain", [4, 8, 14], [0.6, 0.3, -0.1], [2.0, -1.0, 0.0])
    found = parsed(page("review", {}, one))
    first, second, third = found.tokens
    assert first[0] > second[0] > third[0] == 0, "a negative weight is no shade"
    assert (first[2], second[2]) == (False, True)
    assert first[1] > second[1] > third[1] == 0


def test_tokens_that_stand_for_nothing_are_named_and_what_was_cut_is_said() -> None:
    weights = np.full((1, 3), 0.3, np.float32)
    one = Explained("a text that goes on", [(0, 0), (0, 1), (1, 6)], ["<s>", "a", " text"], weights, weights[0])
    found = parsed(page("review", {}, one))
    assert found.text == "<s>a text that goes on (cut off, not read)"
