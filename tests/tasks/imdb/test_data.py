"""IMDB's reviews from folders, every bad input, and the validation split."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nystromformer.errors import UserError
from nystromformer.tasks.finetuning.examples import Texts, split_validation
from nystromformer.tasks.imdb.task import read_imdb

REVIEWS = {
    "train/neg/10_2.txt": "Dull.<br /><br />And long <br/> too.",
    "train/neg/9_1.txt": "Bad, très bad.",
    "train/pos/0_10.txt": "Good. It < br, the book.",
    "test/neg/7_3.txt": "No.",
    "test/pos/3_9.txt": "Yes.<BR>",
    "train/unsup/1_0.txt": "Left out.",
    "train/neg/._9_1.txt": "left by macOS",
    "train/urls_neg.txt": "http://…",
    "README": "about the data",
}


def unpacked(folder: Path, reviews: dict[str, str] = REVIEWS) -> Path:
    for name, text in reviews.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_what_is_read(tmp_path: Path) -> None:
    splits = read_imdb(unpacked(tmp_path / "a" / "aclImdb"))
    assert read_imdb(tmp_path / "a")["test"].first == splits["test"].first, "the folder above is the same"
    assert list(splits) == ["train", "test"]
    train, test = splits["train"], splits["test"]
    assert (train.name, test.name) == ("IMDB train", "IMDB test")
    assert train.ids == ["neg/9_1", "neg/10_2", "pos/0_10"], "by label, then by number"
    assert train.first == ("Bad, très bad.", "Dull. And long too.", "Good. It < br, the book.")
    assert train.labels is not None
    assert train.labels.dtype == np.int64
    assert train.labels.tolist() == [0, 0, 1]
    assert test.first == ("No.", "Yes. ")


@pytest.mark.parametrize("gone", ["train/pos/0_10.txt", "test/neg/7_3.txt"])
def test_no_reviews_of_a_label(tmp_path: Path, gone: str) -> None:
    unpacked(tmp_path, {name: text for name, text in REVIEWS.items() if name != gone})
    with pytest.raises(UserError, match=rf"found no reviews in {gone.rsplit('/', 1)[0]}/\*.txt. Download aclImdb_v1"):
        read_imdb(tmp_path)
    with pytest.raises(UserError, match=r"nowhere: found no reviews in train/neg/\*.txt.*https://ai.stanford"):
        read_imdb(tmp_path / "nowhere")


def test_other_bytes(tmp_path: Path) -> None:
    (unpacked(tmp_path) / "train/pos/5_8.txt").write_bytes("très".encode("latin-1"))
    with pytest.raises(UserError, match=r"5_8\.txt: 'utf-8' codec can't decode byte 0xe8 in position 2"):
        read_imdb(tmp_path)


def labelled(labels: list[int]) -> Texts:
    numbers = [str(number) for number in range(len(labels))]
    return Texts("IMDB train", numbers, labels=np.asarray(labels, dtype=np.int64), ids=numbers)


@given(st.lists(st.integers(0, 2), min_size=4, max_size=60), st.floats(0.001, 0.999), st.integers(0, 2**31))
def test_validation_split(labels: list[int], share: float, seed: int) -> None:
    texts = labelled(labels)
    train, held_out = split_validation(texts, share, seed)
    parts = [list(map(int, part.ids or [])) for part in (train, held_out)]
    assert sorted(parts[0] + parts[1]) == list(range(len(labels))), "each text is in one of them"
    for part, numbers in zip((train, held_out), parts, strict=True):
        assert numbers == sorted(numbers), "in order"
        assert numbers
        assert list(part.first) == [str(number) for number in numbers]
        assert part.labels is not None
        assert part.labels.tolist() == [labels[number] for number in numbers]
    for label in set(labels):
        size, here = labels.count(label), sum(labels[number] == label for number in parts[1])
        assert abs(here - share * size) <= 1
        assert (here > 0) == (size > 1)
        assert here < size
    again = split_validation(labelled(labels), share, seed)
    assert [list(part.ids or []) for part in again] == [list(train.ids or []), list(held_out.ids or [])]
