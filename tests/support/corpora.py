"""Small corpora in the four formats and in the unified one, and what a test asks of the folders made of them."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

from nystromformer.data.dataset import Dataset, open_dataset, verify
from nystromformer.data.preprocessing.corpus import Document, Tally, write_documents
from nystromformer.data.preprocessing.unified import CORPUS_FILE, UnifiedCorpus, shard_name
from nystromformer.files.checked_json import write_checked
from nystromformer.files.parts import PARTS

WORDS = [
    *("a", "the", "model", "landmark", "reads", "writes", "token", "segment", "inverse"),
    *("of", "and", "in", "matrix", "row", "column", "value", "small", "large"),
]


def sentence(draw: random.Random, words: int = 9) -> str:
    return " ".join(draw.choices(WORDS, k=words)).capitalize() + "."


def paragraph(draw: random.Random, sentences: int = 5) -> str:
    return " ".join(sentence(draw) for _ in range(sentences))


def write_wiki(folder: Path, files: int = 4, articles: int = 8, seed: int = 0) -> Path:
    """Articles of four paragraphs, every third one a redirect and every fourth one short."""
    draw = random.Random(seed)
    for number in range(files):
        parts = []
        for article in range(articles):
            title = f"Title {number} {article} &amp; more"
            count = 0 if article % 3 == 2 else 1 if article % 4 == 1 else 4
            body = "\n".join(paragraph(draw) for _ in range(count))
            parts.append(
                f'<doc id="{number * 100 + article}" url="u?curid=1" title="{title}">\n{title}\n\n{body}\n\n</doc>\n'
            )
        path = folder / "text" / f"A{number // 2}" / f"wiki_{number % 2:02d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(parts), encoding="utf-8")
    return folder


def write_bookcorpus(folder: Path, lines: int = 300, seed: int = 1) -> Path:
    draw = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(sentence(draw) + "\n" + "\n" * (n % 50 == 49) for n in range(lines))
    (folder / "books_large_p1.txt").write_text(text, encoding="utf-8")
    return folder


def write_stories(folder: Path, files: int = 6, seed: int = 2) -> Path:
    draw = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        text = "\r\n".join(paragraph(draw) for _ in range(6))
        (folder / f"story{number}.txt").write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n")
    return folder


def write_realnews(folder: Path, articles: int = 12, seed: int = 3) -> Path:
    draw = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "realnews.jsonl").open("w", encoding="utf-8") as file:
        for number in range(articles):
            record = {"title": "T", "text": "\n\n".join(paragraph(draw) for _ in range(number % 3 + 1))}
            file.write(json.dumps(record | ({"url": "u"} if number % 2 else {})) + "\n")
    return folder


def write_packages(folder: Path, packages: int, modules: int = 1, docstrings: int = 12, shared: str = "") -> Path:
    """Python packages: docstrings of their own in every module, and one that all share."""
    for package in range(packages):
        for module in range(modules):
            draw = random.Random(f"{package} {module}")
            own = [f"{sentence(draw, 12)[:-1]} {package} {module} {n}." for n in range(docstrings)]
            body = "\n".join(f'def f{n}():\n    """{text}"""' for n, text in enumerate(own))
            path = folder / f"package{package}" / f"module{module}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'"""{shared}"""\n{body}\n' if shared else body)
    return folder


WRITE = {"wiki": write_wiki, "bookcorpus": write_bookcorpus, "stories": write_stories, "realnews": write_realnews}


def write_unified(
    corpora: Path, name: str, documents: Sequence[Document], with_groups: bool = True, files: int = 1
) -> Path:
    """A corpus in so many files, whose groups are divided by their sizes, or else by a hash."""
    tally = Tally(groups={} if with_groups else None)
    folder, each = corpora / name / "unified", -(-len(documents) // files)
    for document in documents:
        tally.count(document)
    shards = {
        shard_name(number): write_documents(folder / shard_name(number), documents[number * each : (number + 1) * each])
        for number in range(files)
    }
    corpus = UnifiedCorpus(name=name, settings={}, shards=shards, **tally.model_dump())
    write_checked(folder / CORPUS_FILE, corpus.model_dump(mode="json"))
    return folder


def open_verified(folder: Path) -> Dataset:
    """A dataset whose rows are as they were written."""
    dataset = open_dataset(folder)
    verify(dataset)
    return dataset


def contents(folder: Path) -> dict[str, bytes]:
    """Files of a folder but for the records and locks of its parts."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and (path.parent.name != PARTS or path.suffix == ".bin")
    }
