"""Questions whose answer stands once in a long text: what rows hold, and mistakes."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from corpora import write_unified

from nystromformer.command_line import cli
from nystromformer.data.preprocessing.corpus import Document
from nystromformer.data.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer
from nystromformer.files.paths import EXPERIMENTS

sys.path.append(str(EXPERIMENTS / "needle"))
import draw as needle

WORDS = [
    "harbour",
    "garden",
    "winter",
    "letter",
    "silver",
    "bridge",
    "mountain",
    "doctor",
    "yellow",
    "market",
    "window",
    "captain",
]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A corpus of numbered documents, and a tokenizer."""
    folder = tmp_path_factory.mktemp("needle")
    documents = [
        Document(str(n), str(n), tuple(f"Number {n} saw the {a} of a {b} ." for a in WORDS for b in WORDS if a != b))
        for n in range(10)
    ]
    write_unified(folder, "made-up", documents)
    texts = [text for document in documents for text in document.sentences]
    frames = [f"in which city does {word} work ? {word} works for it ." for word in WORDS * 50]
    save_tokenizer(
        train_tokenizer(texts + frames + [f"it is in {city} ." for city in needle.CITIES * 50], 1200), folder
    )
    return {"corpus": folder / "made-up" / "unified", "tokenizer": folder}


def draw(given: dict[str, Path], out: Path, **more: Any) -> dict[str, list[dict[str, Any]]]:
    usual = {"length": 256, "facts": 4, "hops": 1, "train": 20, "test": 20, "seed": 0}
    needle.draw(**given, **{**usual, **more}, out=out)
    return {
        name: [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "test")
    }


@pytest.mark.parametrize("hops", [1, 2])
def test_a_row_holds_its_answer_once_where_it_says(given: dict[str, Path], tmp_path: Path, hops: int) -> None:
    tokenizer = load_tokenizer(given["tokenizer"])
    rows = draw(given, tmp_path / "rows", hops=hops)
    documents: dict[str, set[str]] = {}
    for split, own in rows.items():
        assert len(own) == 20
        for row in own:
            question, text = row["question"], row["text"]
            assert 200 < len(tokenizer.encode(question, text).ids) <= 256
            cities, people = (dict(re.findall(rf"(\w+) {words} (\w+) \.", text)) for words in ("is in", "works for"))
            assert len(cities) == len(set(cities.values())) == 4
            name = question.split()[4]
            place = name if hops == 1 else people[name]
            assert len(people) == 4 * (hops - 1)
            assert cities[place] == row["city"]
            before = text[: text.index(f"{place} is in")].strip()
            assert len(tokenizer.encode(before, add_special_tokens=False).ids) == row["distance"]
            documents.setdefault(split, set()).update(re.findall(r"Number (\d)", text))
    assert documents["test"].isdisjoint(documents["train"])
    assert len({row["city"] for row in rows["train"]}) > 4
    assert len({row["question"] for row in rows["train"]}) > 5


def test_a_seed_decides_the_rows(given: dict[str, Path], tmp_path: Path) -> None:
    one, same, other = (draw(given, tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert one == same
    assert one != other


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"--length": "20"}, r"--length 20: expected at least \d+, for --facts 4"),
        ({"--facts": "9"}, "'--facts'"),
        ({"--facts": "8", "--hops": "2"}, r"--facts 8: expected a tokenizer with 16 names, found 12"),
        ({"--corpus": "nowhere"}, "nowhere: expected a corpus in the unified format"),
        ({"--tokenizer": "nowhere"}, "nowhere"),
        ({"--out": "{corpus}"}, "exists and is not an empty folder"),
    ],
)
def test_mistakes(
    given: dict[str, Path], tmp_path: Path, flags: dict[str, str], said: str, capsys: Any, monkeypatch: Any
) -> None:
    own = {"--corpus": "{corpus}", "--tokenizer": "{tokenizer}", "--length": "256", "--facts": "4"}
    own |= {"--out": str(tmp_path / "rows")} | flags
    monkeypatch.setattr(sys, "argv", ["draw.py", *(part.format(**given) for pair in own.items() for part in pair)])
    with pytest.raises(SystemExit) as ended:
        cli.run(needle.draw)
    assert ended.value.code == 2
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "rows").exists()
