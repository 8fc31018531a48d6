"""The four corpora: every text is in the unified documents in order, and what cannot be read is named."""

import bz2
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from corpora import WRITE, contents, paragraph, sentence, write_bookcorpus, write_wiki
from hypothesis import given, settings
from hypothesis import strategies as st

from nystromformer.data.preprocessing import corpus as text_module
from nystromformer.data.preprocessing import formats as unify_module
from nystromformer.data.preprocessing.build import DatasetSettings
from nystromformer.data.preprocessing.corpus import Document, Tally, cut_document, read_documents, write_documents
from nystromformer.data.preprocessing.files import OpenFile, divide, find_files
from nystromformer.data.preprocessing.formats import DOCUMENTS_PER_GROUP, FORMATS, Rules, unify
from nystromformer.data.preprocessing.unified import read_corpus
from nystromformer.errors import UserError

RULES = {
    "wiki": Rules(min_words=128),
    "bookcorpus": Rules(lines_per_document=40),
    "stories": Rules(),
    "realnews": Rules(min_words=60),
}


def documents(folder: Path) -> list[Document]:
    return [document for shard in read_corpus(folder).shards for document in read_documents(folder / shard)]


def make(name: str, source: Path, out: Path, rules: Rules | None = None, **others: object) -> list[Document]:
    unify(source, out, FORMATS[name], rules or RULES[name], **others)  # type: ignore[arg-type]
    return documents(out)


def read_chunks(name: str, source: Path, chunk_bytes: int, rules: Rules | None = None) -> list[Document]:
    """All documents of a corpus, read in chunks of a given size."""
    format = FORMATS[name]
    names = find_files(source, format.pattern, format.looks)
    kept: list[Document] = []
    for files in divide(source, names, format.cut, chunk_bytes):
        for file in files:
            kept += format.read(file, rules or RULES[name], Tally())
    return kept


def test_wiki(tmp_path: Path) -> None:
    source = write_wiki(tmp_path / "wiki")
    kept = make("wiki", source, tmp_path / "out")
    corpus = read_corpus(tmp_path / "out")
    # of 8 articles numbers 2 and 5 are redirects, number 1 is short
    assert [document.id for document in kept] == [str(100 * f + n) for f in range(4) for n in (0, 3, 4, 6, 7)]
    assert corpus.dropped == {"document under 128 words": 4, "empty document": 8}
    assert corpus.words == sum(document.words for document in kept) == 20 * 4 * 5 * 9
    text = (source / "text" / "A0" / "wiki_00").read_text().split("\n")
    assert " ".join(kept[0].sentences) == " ".join(text[3:7]), "all of the text, without the title"
    assert all(document.group == document.id for document in kept)


def test_wiki_entities_and_a_first_line_that_is_no_title(tmp_path: Path) -> None:
    tmp_path.joinpath("wiki_00").write_text(
        '<doc id="1" url="u" title="A &gt; "B"">\nA &gt; "B"\n\nFish &amp; chips.\nIs it? It is.\n</doc>\n'
        '<doc id="2">\nA first line.\n</doc>\n'
    )
    kept = make("wiki", tmp_path, tmp_path / "out", Rules())
    assert [d.sentences for d in kept] == [("Fish & chips.", "Is it?", "It is."), ("A first line.",)]


def test_bookcorpus(tmp_path: Path) -> None:
    source = write_bookcorpus(tmp_path / "books")
    kept = make("bookcorpus", source, tmp_path / "out")
    lines = (source / "books_large_p1.txt").read_text().split("\n")
    assert [s for d in kept for s in d.sentences] == [line for line in lines if line]
    assert [len(d.sentences) for d in kept] == [40] * 7 + [20]
    assert {d.group for d in kept} == {"books_large_p1.txt@0"}, "too few for a second group"
    assert "/" not in (tmp_path / "out" / "corpus.json").read_text()


def numbered_books(folder: Path, lines: int) -> Path:
    """A book whose lines tell their number."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "book.txt").write_text("".join(f"This is line {n}.\n" for n in range(lines)), encoding="utf-8")
    return folder


@pytest.mark.parametrize("chunk", [1 << 24, 30_000], ids=["one chunk", "chunks"])
def test_no_line_of_books_is_near_one_of_the_other_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    size, lines = 7, 6000
    monkeypatch.setattr(unify_module, "divide", lambda *given: divide(*given, chunk))
    kept = make(
        "bookcorpus", numbered_books(tmp_path / "books", lines), tmp_path / "out", Rules(lines_per_document=size)
    )
    corpus = read_corpus(tmp_path / "out")
    assert corpus.groups is not None
    settings = DatasetSettings(32, ("bookcorpus",), "train", validation=0.2)
    choice = settings.choices({"bookcorpus": corpus})["bookcorpus"]
    side, groups, sizes = {}, Counter[str](), Counter[str]()
    for document in kept:
        groups[document.group] += 1
        sizes[document.group] += document.characters
        for line in document.sentences:
            side[int(line.split()[-1][:-1])] = choice(document)[0]
    assert corpus.groups == sizes
    assert set(side.values()) == {"train", "validation"}
    for number, split in side.items():
        near = {side.get(other, split) for other in range(number - size, number + size + 1)}
        assert near == {split}
    if chunk > 30_000:
        assert min(groups.values()) >= DOCUMENTS_PER_GROUP
    left_out = lines - len(side)
    assert left_out == size * corpus.dropped["document between two groups"]
    assert left_out < 0.06 * lines


def test_stories(tmp_path: Path) -> None:
    source = WRITE["stories"](tmp_path / "stories")
    kept = make("stories", source, tmp_path / "out")
    assert [d.id for d in kept] == [f"story{n}.txt" for n in range(6)]
    for document in kept:
        text = (source / document.id).read_bytes().decode("utf-8-sig").replace("\r\n", " ")
        assert " ".join(document.sentences) == text.strip()


def test_wrapped_lines_of_a_story_are_joined(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(
        "CHAPTER I\n\nIt was a dark and stormy night in the\nold town of the north. Nobody was to\nbe seen.\n"
        "He came late, and he said nothing to\nanyone there.\n"
    )
    [story] = make("stories", tmp_path, tmp_path / "out")
    assert story.sentences == (
        "CHAPTER I",
        "It was a dark and stormy night in the old town of the north.",
        "Nobody was to be seen.",
        "He came late, and he said nothing to anyone there.",
    )


def test_realnews(tmp_path: Path) -> None:
    source = WRITE["realnews"](tmp_path / "news")
    kept = make("realnews", source, tmp_path / "out")
    texts = [json.loads(line)["text"] for line in (source / "realnews.jsonl").read_text().splitlines()]
    long = [text for text in texts if len(text.split()) >= 60]
    assert [" ".join(d.sentences) for d in kept] == [" ".join(text.split()) for text in long]
    assert read_corpus(tmp_path / "out").dropped == {"document under 60 words": len(texts) - len(long)}


@pytest.mark.parametrize("name", ["wiki", "bookcorpus", "realnews"])
@settings(max_examples=20)
@given(chunk_bytes=st.integers(1, 9000))
def test_chunks_share_the_text_among_them(
    tmp_path_factory: pytest.TempPathFactory, name: str, chunk_bytes: int
) -> None:
    source = tmp_path_factory.getbasetemp() / f"chunks-{name}"
    if not source.exists():
        WRITE[name](source)
    whole = read_chunks(name, source, 10**9)
    parts = read_chunks(name, source, chunk_bytes)
    if name == "bookcorpus":
        # documents begin anew in every chunk, but for the first one, which is next to the group before
        kept, everything = ([s for d in some for s in d.sentences] for some in (parts, whole))
        rest = iter(everything)
        assert all(sentence in rest for sentence in kept), "in order"
        chunks = len(divide(source, find_files(source, "*.txt", "books"), True, chunk_bytes))
        assert len(everything) - len(kept) <= 40 * (chunks - 1)
    else:
        assert parts == whole


@settings(max_examples=60)
@given(
    st.lists(st.text(alphabet="ab ", min_size=1, max_size=60).map(str.strip).filter(bool), max_size=30),
    st.integers(10, 80),
    st.integers(5, 30),
)
def test_long_documents_are_cut_between_sentences(sentences: list[str], most: int, longest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "MAX_DOCUMENT", most)
        patch.setattr(text_module, "MAX_SENTENCE", longest)
        tally = Tally()
        made = list(cut_document("name", sentences, 0, tally))
    assert "".join("".join(d.sentences).replace(" ", "") for d in made) == "".join(sentences).replace(" ", "")
    assert len({d.id for d in made}) == len(made)
    assert {d.group for d in made} <= {"name"}
    assert all(sum(map(len, d.sentences)) <= max(most, longest) for d in made)
    assert all(len(s) <= longest for d in made for s in d.sentences)
    assert tally.cut["document over 10^6 characters"] == (len(made) > 1)


def test_compressed_files_are_read(tmp_path: Path) -> None:
    plain = write_wiki(tmp_path / "plain", files=1)
    text = (plain / "text" / "A0" / "wiki_00").read_bytes()
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "wiki_00.bz2").write_bytes(bz2.compress(text))
    assert make("wiki", tmp_path / "packed", tmp_path / "a") == make("wiki", plain, tmp_path / "b")
    (tmp_path / "packed" / "wiki_00.bz2").write_bytes(bz2.compress(text)[:-20])
    with pytest.raises(UserError, match=r"wiki_00\.bz2: cannot be read, is damaged or cut off"):
        make("wiki", tmp_path / "packed", tmp_path / "c")


def test_links_are_followed_and_the_projects_own_files_left_out(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "one").write_text("One story.")
    (tmp_path / "stories").mkdir()
    for name in ("preprocess.py", "README.md", ".hidden"):
        (tmp_path / "stories" / name).write_text("No story.")
    (tmp_path / "stories" / "link").symlink_to(tmp_path / "elsewhere")
    out = tmp_path / "stories" / "unified"
    kept = make("stories", tmp_path / "stories", out)
    assert [(d.id, d.sentences) for d in kept] == [("link/one", ("One story.",))]
    assert make("stories", tmp_path / "stories", out) == kept, "its own result is no source"
    with pytest.raises(UserError, match=r"--out .*stories: this folder holds the corpus itself"):
        make("stories", tmp_path / "stories", tmp_path / "stories")


ARTICLE = '<doc id="1" url="u" title="T">\nT\n\nSome text.\n</doc>\n'
BAD = {
    "wiki: no doc": ("wiki", "wiki_00", b"Some text.\n", r"wiki_00, line 1: expected WikiExtractor's <doc .*Some text"),
    "wiki: cut": ("wiki", "wiki_00", (ARTICLE + ARTICLE)[:-8].encode(), r"wiki_00, line 6: .*no </doc>.*cut off"),
    "wiki: nested": ("wiki", "wiki_00", (ARTICLE[:-7] + ARTICLE).encode(), r"line 5: a <doc …> before the </doc>"),
    "wiki: other files": (
        "wiki",
        "enwiki.xml",
        b"<mediawiki>",
        r"expected files wiki_00.*found others, such as enwiki",
    ),
    "wiki: nothing": ("wiki", ".hidden", b"", r"expected files wiki_00.*, found none"),
    "stories: empty": ("stories", "s", b"", "only empty files"),
    "news: cut": (
        "realnews",
        "r.jsonl",
        b'{"text": "a"}\n{"text": "b',
        r"line 2: expected a JSON object .*Unterminated",
    ),
    "news: no text": ("realnews", "r.jsonl", b'{"body": "a"}\n', r'line 1: .* a text in "text", found .*body'),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_named(case: str, tmp_path: Path) -> None:
    name, file, content, message = BAD[case]
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / file).write_bytes(content)
    with pytest.raises(UserError, match=message):
        make(name, tmp_path / "source", tmp_path / "out", Rules())
    assert contents(tmp_path / "out") == {}


SKIPPED = {
    "wiki": ("wiki_00", b'<doc id="1" title="T">\nOne.\nT\xffwo.\n</doc>\n', {"undecodable line": 1}),
    "bookcorpus": ("b.txt", b"One.\nT\xffwo.\nT\0wo.\n", {"undecodable line": 1, "line with a NUL byte": 1}),
    "stories": ("s", b"T\0wo.\nOne.\nT\xffwo.\n", {"undecodable line": 1, "line with a NUL byte": 1}),
    "realnews": ("n.jsonl", b'{"text": "One."}\n{"text": "T\xffwo."}\n{"text": "\\ud800"}\n', {"undecodable line": 2}),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_undecodable_lines_are_skipped_and_counted(name: str, tmp_path: Path) -> None:
    file, content, dropped = SKIPPED[name]
    (tmp_path / file).write_bytes(content)
    kept = make(name, tmp_path, tmp_path / "out", Rules())
    assert [d.sentences for d in kept] == [("One.",)]
    assert read_corpus(tmp_path / "out").dropped == dropped


def test_a_changed_source_is_refused(tmp_path: Path) -> None:
    source = write_bookcorpus(tmp_path / "books")
    make("bookcorpus", source, tmp_path / "out")
    (source / "books_large_p2.txt").write_text("Another sentence.\n")
    with pytest.raises(UserError, match=r"(?s)state of the source: found .*remove the folder"):
        make("bookcorpus", source, tmp_path / "out")


def test_unified_folders_are_checked(tmp_path: Path) -> None:
    out = tmp_path / "bookcorpus" / "unified"
    with pytest.raises(UserError, match=r"unified: expected a corpus .*found no folder\. Make it .*preprocess\.py"):
        read_corpus(out)
    make("bookcorpus", write_bookcorpus(tmp_path / "bookcorpus"), out)
    (out / "00000.jsonl").write_bytes(b"cut")
    with pytest.raises(UserError, match=r"00000\.jsonl: 3 bytes, expected \d+ bytes"):
        read_corpus(out)
    (out / "corpus.json").unlink()
    with pytest.raises(
        UserError, match=r"unified: expected a corpus .*found no corpus\.json: it is unfinished\. Make it with"
    ):
        read_corpus(out)


def test_rows_of_a_data_set(tmp_path: Path) -> None:
    draw = random.Random(0)
    texts = [paragraph(draw, 20) for _ in range(10)]
    for part in range(2):
        numbers = range(5 * part, 5 * part + 5)
        lines = [json.dumps({"id": number or None, "body": texts[number]}) for number in numbers]
        tmp_path.joinpath("set").mkdir(exist_ok=True)
        (tmp_path / "set" / f"{part}.jsonl").write_text("\n".join(lines))
    hub = str(tmp_path / "set")
    unify(tmp_path, tmp_path / "out", FORMATS["wiki"], Rules(128, text_field="body", hub=hub))
    kept = documents(tmp_path / "out")
    assert [" ".join(d.sentences) for d in kept] == texts
    assert [d.id for d in kept] == ["0.0", *(str(n) for n in range(1, 10))], "of null: the part and row"
    with pytest.raises(UserError, match=r"row 0 of part 0: expected a text in .*; the columns are id, body"):
        unify(tmp_path, tmp_path / "out2", FORMATS["wiki"], Rules(hub=hub))


def test_a_hub_name_without_a_network(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)--hub nobody/nothing: cannot be loaded: .*needs a network"):
        unify(tmp_path, tmp_path / "out", FORMATS["wiki"], Rules(hub="nobody/nothing"))
    assert not (tmp_path / "out").exists()


def test_sentences_of_rows_make_documents() -> None:
    draw = random.Random(0)
    rows = [(str(n), sentence(draw)) for n in range(25)]
    made = list(FORMATS["bookcorpus"].rows(rows, Rules(lines_per_document=10), Tally()))
    assert [len(d.sentences) for d in made] == [10, 5], "the first one is next to the text of another part"
    assert Counter(s for d in made for s in d.sentences) == Counter(text for _, text in rows[10:])


FRAGMENTS = [
    b'<doc id="1" url="u" title="T">\n',
    b"<doc ",
    b"</doc>\n",
    b'{"text": "One. Two."}\n',
    b'{"text": "\\ud800"}\n',
    b"{",
    b'"',
    b"Some text. More of it.\n",
    b"&#0;&amp;&#xd800;&bogus;\n",
    b"\xff",
    b"\0",
    b"\r",
    b"\r\n",
    b"\n",
    b"\xef\xbb\xbf",
    "\u2028\x85".encode(),
]


@settings(max_examples=100)
@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=4), max_size=12).map(b"".join),
    st.integers(0, 60),
)
def test_any_bytes_are_documents_or_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes, begin: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "any").write_bytes(content)
    file = OpenFile(folder, "any", min(begin, len(content)) if FORMATS[name].cut else 0)
    problem = ""
    kept: list[Document] = []
    try:
        kept = list(FORMATS[name].read(file, Rules(lines_per_document=2), Tally()))
    except UserError as error:
        problem = str(error)
    assert not problem or "any, line " in problem
    write_documents(folder / "any.jsonl", kept)
    assert list(read_documents(folder / "any.jsonl")) == kept
    assert all(document.sentences and all(document.sentences) for document in kept)
