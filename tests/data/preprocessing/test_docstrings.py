"""Docstrings: which files are read, what of them is kept, and that validation text is new."""

from pathlib import Path

import pytest
from corpora import write_packages

from nystromformer.data.preprocessing.corpus import Document, Tally, read_documents, split_sentences
from nystromformer.data.preprocessing.docstrings import (
    DocstringSettings,
    Module,
    clean_docstring,
    documents_of_modules,
    extract_docstrings,
    find_sources,
    is_english,
    read_module,
    read_modules,
    unify_docstrings,
)
from nystromformer.data.preprocessing.unified import read_corpus
from nystromformer.errors import UserError

SHARED = "This boilerplate sentence stands in every package of the tree. It has no other purpose."


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_packages(tmp_path_factory.mktemp("tree"), packages=12, modules=3, docstrings=8, shared=SHARED)


def test_sources_are_sorted_and_leave_out_tests_and_vendored_code(tmp_path: Path) -> None:
    kept = ["a/__init__.py", "a/b/c.py", "d.py"]
    left_out = ["a/tests/x.py", "a/test/x.py", "a/_vendor/x.py", "a/test_x.py", "a/conftest.py", "a/x.pyi", "a/x.txt"]
    for name in (*left_out, *reversed(kept)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    files = find_sources([tmp_path])
    assert list(files) == kept
    assert [Module(name).group for name in files] == ["a", "a", "d"]
    (tmp_path / "a" / "tests" / "d.py").touch()
    both = find_sources([tmp_path, tmp_path / "a" / "tests"])
    assert both["d.py"] == files["d.py"], "the first folder wins, as in an import"
    with pytest.raises(UserError, match=r"nowhere: expected a folder with Python packages"):
        find_sources([tmp_path / "nowhere"])


def test_docstrings_come_in_source_order() -> None:
    source = '''"""Module.

    Indented text."""
text = """no docstring"""
class A:
    """Class."""
    def f(self):
        """Method."""
        if self:
            async def inner():
                r"""Inner \\d."""
    """not a docstring"""
try:
    pass
except E:
    def g(): "One line."
else:
    with x:
        def h():
            """Last."""
match x:
    case 1:
        def m():
            """Matched."""
'''
    expected = ["Module.\n\nIndented text.", "Class.", "Method.", "Inner \\d.", "One line.", "Last.", "Matched."]
    assert extract_docstrings(source.encode()) == expected


@pytest.mark.parametrize(
    ("text", "english"),
    [
        ("Return the value of the parameter, or None.", True),
        ("Gibt den Wert zurück, für höhere Zähler größer.", False),
        ("返回参数的值。", False),
        ("| 1 | 2 | 3 |\n| 4 | 5 | 6 | x", False),
        ("half of a pair \ud800 here in a text", False),
        ("", False),
    ],
)
def test_english_is_mostly_ascii_letters(text: str, english: bool) -> None:
    assert is_english(text) is english


def sentences(text: str) -> list[str]:
    return split_sentences(clean_docstring(text))


def test_code_is_dropped_and_prose_is_kept() -> None:
    text = """Sum of x. More.

Example::

    hidden = code()

        deeper

Shown again.

>>> f(1)
... more
output
Still output

After it.
```python
hidden()
```
Between.

.. math::
   a = b

.. note:: Prose stays.
   All of it.

Examples
--------
End."""
    assert sentences(text) == [
        "Sum of x.",
        "More.",
        "Shown again.",
        "After it.",
        "Between.",
        ".. note:: Prose stays.",
        "All of it.",
        "End.",
    ]


def test_parameters_and_items_are_sentences() -> None:
    text = """Join things
across lines
Parameters
----------
x : int, optional
    The width
*args, **kwargs : other
Args:
    size (`int`, *optional*): Of it
    other: text
- item one
  goes on
2. second
:param x: the x
.. [1] A book"""
    assert sentences(text) == [
        "Join things across lines Parameters",
        "x : int, optional The width",
        "*args, **kwargs : other",
        "Args:",
        "size (`int`, *optional*): Of it",
        "other: text",
        "- item one goes on",
        "2. second",
        ":param x: the x",
        "[1] A book",
    ]


def read(path: Path) -> Module:
    return read_module("a/x.py", path)


@pytest.mark.parametrize(
    "content",
    [
        b'"""A docstring."""\ndef broken(:',
        b'"""A docstring. \xff"""',
        b'"""A docstring."""\n' + b"x = " + b"-" * 100_000 + b"1",
        None,
    ],
    ids=["syntax", "bytes", "too deep", "missing"],
)
def test_a_bad_file_is_counted(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "x.py").write_bytes(content)
    assert read(tmp_path / "x.py") == Module("a/x.py", problem="file that cannot be read or parsed")


def documents(modules: list[Module], min_words: int) -> tuple[list[Document], Tally]:
    tally = Tally(groups={})
    return list(map(tally.count, documents_of_modules(modules, min_words, tally))), tally


def test_a_docstring_stands_once_so_that_validation_is_new_text(tree: Path) -> None:
    kept, tally = documents(read_modules(find_sources([tree]), None, 1), 1)
    texts = [sentence for document in kept for sentence in document.sentences]
    assert texts.count("It has no other purpose.") == 1
    assert tally.dropped["duplicate docstring"] == 12 * 3 - 1
    assert {document.group for document in kept} == {document.id.split("/")[0] for document in kept}
    assert tally.groups is not None
    assert sum(tally.groups.values()) == tally.characters == sum(map(len, texts))


def test_the_corpus_is_written(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nystromformer.data.preprocessing.docstrings._SHARD_CHARACTERS", 5000)
    corpus = unify_docstrings(tmp_path, DocstringSettings([tree]))
    assert corpus is not None
    assert len(corpus.shards) > 3
    kept = [document for shard in corpus.shards for document in read_documents(tmp_path / shard)]
    assert [document.id for document in kept] == sorted(document.id for document in kept)
    assert corpus.documents == len(kept)
    assert corpus.words == sum(document.words for document in kept)
    assert corpus.groups is not None
    assert set(corpus.groups) == {document.group for document in kept}
    assert read_corpus(tmp_path) == corpus
    assert str(tree) not in (tmp_path / "corpus.json").read_text()
