"""The corpus format, sentence splitting, the choice of validation groups, and files that are whole or absent."""

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nystromformer.data.preprocessing.corpus import (
    Document,
    choose_validation_groups,
    read_documents,
    split_sentences,
    write_documents,
)
from nystromformer.errors import UserError
from nystromformer.files import NewFile, sha256_of

DOCUMENTS = [
    Document("a/b.py", "a", ("First sentence.", "Zweiter Satz: ä, 中, \u2028.")),
    Document("c.py", "c", ()),
    Document("d", "d", ('Quotes " and \\ and \n inside.',)),
]


def test_documents_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "new" / "corpus.jsonl"
    stamp = write_documents(path, DOCUMENTS)
    assert list(read_documents(path)) == DOCUMENTS
    assert (stamp.size, stamp.sha256) == (path.stat().st_size, sha256_of(path))
    assert path.read_bytes().count(b"\n") == len(DOCUMENTS)


def test_half_of_a_surrogate_pair_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"document 'b' holds half of a surrogate pair"):
        write_documents(tmp_path / "corpus.jsonl", [DOCUMENTS[0], Document("b", "b", ("A \ud800.",))])
    assert not list(tmp_path.iterdir())


def test_words() -> None:
    assert Document("a", "a", ("one two", "three")).words == 3


GOOD_LINE = b'{"id": "a", "group": "g", "sentences": ["One."]}\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\n", "not JSON"),
        (b'{"id": "a", "group": "g", "sent', "not JSON .* cut off"),
        (b"[1]\n", "JSON list, not an object"),
        (b'{"group": "g", "sentences": []}\n', '"id" is missing'),
        (b'{"id": "a", "group": 3, "sentences": []}\n', '"group" is 3, not a text'),
        (b'{"id": "a", "group": "g"}\n', '"sentences" is missing'),
        (b'{"id": "a", "group": "g", "sentences": ["x", 1]}\n', "not a list of texts"),
        (b'{"id": "a", "group": "g", "sentences": "x"}\n', "not a list of texts"),
        (b'{"id": "\xff", "group": "g", "sentences": []}\n', "not UTF-8 at byte 8"),
        (b'{"id": "a", "group": "g", "sentences": ["\\uD800"]}\n', "surrogate"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(GOOD_LINE + line)
    with pytest.raises(UserError, match=rf"corpus\.jsonl, line 2: .*{message}"):
        list(read_documents(path))


def test_a_surrogate_pair_in_escapes_is_a_character(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"id": "a", "group": "g", "sentences": ["😀"]}) + "\n")
    assert "\\ud" in path.read_text()
    assert next(read_documents(path)).sentences == ("😀",)


def test_a_missing_corpus_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.jsonl: the corpus cannot be read"):
        list(read_documents(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("One\nline. And\n\nAnother\n  \n\tThird", ["One line.", "And", "Another", "Third"]),
        ("See e.g. Smith vs. Jones et al. Then Fig. 3.", ["See e.g. Smith vs. Jones et al. Then Fig. 3."]),
        ("By J. R. Smith. It is good.", ["By J. R. Smith.", "It is good."]),
        ("So do I. You too.", ["So do I.", "You too."]),
        ("1. Do this. 2. Do that.", ["1. Do this.", "2. Do that."]),
        ("Since 1999. Then", ["Since 1999.", "Then"]),
        ('He said "no." (And left.) "Yes."', ['He said "no."', "(And left.)", '"Yes."']),
        ("version 3.11 of a.b.c. is", ["version 3.11 of a.b.c. is"]),
        ("Wait... Then go.", ["Wait...", "Then go."]),
        (" \n\n ", []),
        ("", []),
    ],
)
def test_split_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


@given(st.text(st.sampled_from("aB1 .!?\n\"'()e.g ä"), max_size=80))
def test_splitting_loses_no_character(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == " ".join(sentence.split()) for sentence in sentences)


GROUP_SIZES = st.dictionaries(st.text("abcdef", min_size=1, max_size=4), st.integers(1, 1000), min_size=2, max_size=40)


@given(GROUP_SIZES, st.integers(0, 5), st.sampled_from([0.05, 0.2, 0.5, 0.9]))
def test_validation_groups(sizes: dict[str, int], seed: int, share: float) -> None:
    chosen = choose_validation_groups(sizes, seed, share)
    chosen_share = sum(sizes[group] for group in chosen) / sum(sizes.values())
    assert 0 < len(chosen) < len(sizes)
    assert chosen_share <= 1.2 * share or [sizes[group] for group in chosen] == [min(sizes.values())]
    assert chosen == choose_validation_groups(dict(sorted(sizes.items())), seed, share)


def test_validation_groups_reach_their_share_and_follow_the_seed() -> None:
    sizes = {f"package{index}": 10 for index in range(200)}
    choices = {choose_validation_groups(sizes, seed, 0.05) for seed in range(5)}
    assert len(choices) == 5
    assert {len(chosen) for chosen in choices} == {8}
    assert choose_validation_groups(sizes, 0, 1) == set(sizes)


def test_the_choice_is_the_same_in_every_process() -> None:
    # a fixed answer: it would change with the process if it used `hash`
    assert choose_validation_groups(dict.fromkeys("abcdefghijklmnopqrst", 5), 0, 0.05) == {"l"}


@pytest.mark.parametrize("sizes", [{}, {"only": 3}])
def test_one_group_cannot_be_split(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least two groups"):
        choose_validation_groups(sizes, 0, 0.2)


def test_an_exception_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    file = NewFile(path)
    file.__enter__()
    file.write(b"new")
    file.__exit__(RuntimeError, RuntimeError("stopped"), None)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("size", [10, 1 << 20], ids=["fails at the flush", "fails at the write"])
def test_a_full_disk_is_a_user_error(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    (tmp_path / "file.tmp").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"file: no space left on the device") as caught, NewFile(path) as file:
        file.write(b"x" * size)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_place_that_cannot_be_written_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="cannot be written"), NewFile(tmp_path / "file" / "below"):
        pass
