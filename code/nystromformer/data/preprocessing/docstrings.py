"""The corpus of docstrings, text that every machine has: English ones of installed Python packages, in the unified
format. Duplicates are dropped, a document is a module, a group a package.
"""

from __future__ import annotations

import ast
import os
import re
import string
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from nystromformer.data.preprocessing.corpus import (
    Document,
    Tally,
    cut_document,
    in_batches,
    split_sentences,
    stable_hash,
    write_documents,
)
from nystromformer.data.preprocessing.pool import Made, progress_bar, run_works
from nystromformer.data.preprocessing.unified import UnifiedCorpus, shard_name, write_unified
from nystromformer.errors import UserError
from nystromformer.files.reading import half_character

# tests have few docstrings and much code; vendored packages are near-copies, which a split by package would leak
_SKIPPED_FOLDERS = frozenset({"test", "tests", "_vendor", "vendor", "site-packages", "dist-packages", "__pycache__"})
_MIN_LETTER_SHARE = 0.6
_MAX_FOREIGN_SHARE = 0.02
_FILES_PER_BATCH = 32
_LETTERS = string.ascii_letters.encode()
_SHARD_CHARACTERS = 1 << 22


@dataclass(frozen=True)
class DocstringSettings:
    """What decides which docstrings make up the corpus; its fields are flags (`with_flag_groups`)."""

    sources: Annotated[
        list[Path] | None,
        typer.Option(
            "--source", help="Folder of Python packages to read instead of the installed ones; repeat it for several."
        ),
    ] = None
    min_words: Annotated[
        int, typer.Option("--min_words", min=1, help="Drop modules whose docstrings have fewer words.")
    ] = 20
    limit_mb: Annotated[
        float | None, typer.Option("--limit_mb", min=1e-3, help="Stop after so many million characters, of a sample.")
    ] = None


def unify_docstrings(out: Path, settings: DocstringSettings, workers: int = 1) -> UnifiedCorpus | None:
    """Make the unified folder of the docstrings, or what an interrupted run left to do; nothing where it is finished,
    also when packages are installed later.
    """
    sources = settings.sources or []
    described = {**vars(settings), "sources": [folder.resolve().name for folder in sources]}
    files = find_sources(sources or installed_sources())
    work = partial(_write, out, files, settings, workers)
    origin = {"source": [str(folder.resolve()) for folder in sources]}
    return write_unified(out, "docstrings", described, origin, {"corpus": work}, 1)


def _write(out: Path, files: Mapping[str, Path], settings: DocstringSettings, workers: int) -> Made:
    modules = read_modules(files, settings.limit_mb, workers)
    tally = Tally(groups={})
    shards = {}
    documents = documents_of_modules(modules, settings.min_words, tally)
    for number, batch in enumerate(in_batches(documents, _SHARD_CHARACTERS)):
        shard = out / shard_name(number)
        shards[shard] = write_documents(shard, map(tally.count, batch))
    return shards, tally.model_dump()


@dataclass(frozen=True)
class Module:
    """What one file gave: the sentences of each English docstring in source order, and what was dropped."""

    id: str
    docstrings: tuple[tuple[str, ...], ...] = ()
    problem: str | None = None
    not_english: int = 0

    @property
    def group(self) -> str:
        """Its top-level package."""
        return self.id.partition("/")[0].removesuffix(".py")


def installed_sources() -> list[Path]:
    """Folders of installed packages that the running interpreter imports from, then its standard library."""
    packages = [Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    return [folder for folder in (*packages, Path(sysconfig.get_paths()["stdlib"])) if folder.is_dir()]


def find_sources(folders: Sequence[Path]) -> dict[str, Path]:
    """Python files below `folders`, without tests and vendored packages, by their names there, sorted. Where two
    folders hold a file of one name, the first folder's counts, as for an import.
    """
    files: dict[str, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: expected a folder with Python packages, found none: correct --source")
        for parent, below, names in os.walk(folder):
            below[:] = [name for name in below if name not in _SKIPPED_FOLDERS]
            for name in names:
                if name.endswith(".py") and not name.startswith("test_") and name != "conftest.py":
                    path = Path(parent, name)
                    files.setdefault(path.relative_to(folder).as_posix(), path)
    return dict(sorted(files.items()))


def read_modules(files: Mapping[str, Path], limit_mb: float | None, workers: int) -> list[Module]:
    """Extract the docstrings of files, sorted by id, in processes; the result does not depend on their number.

    Args:
        limit_mb: stop after this much distinct text (in 10^6 characters), of a sample of all packages.
    """
    order = sorted(files.items(), key=lambda file: stable_hash(0, file[0]))
    limit = float("inf") if limit_mb is None else limit_mb * 1e6
    modules: list[Module] = []
    seen: set[str] = set()
    characters = 0
    works = [partial(_read_batch, order[at : at + _FILES_PER_BATCH]) for at in range(0, len(order), _FILES_PER_BATCH)]
    with closing(run_works(works, workers)) as results, progress_bar("docstrings", "file", len(files)) as bar:
        for module in chain.from_iterable(results):
            bar.update()
            modules.append(module)
            for docstring in module.docstrings:
                if (text := " ".join(docstring)) not in seen:
                    seen.add(text)
                    characters += sum(map(len, docstring))
            if characters >= limit:
                break
    return sorted(modules, key=lambda module: module.id)


def _read_batch(files: Sequence[tuple[str, Path]]) -> list[Module]:
    return [read_module(*file) for file in files]


def read_module(id: str, path: Path) -> Module:
    """Extract and clean the docstrings of one file; a file that cannot be read or parsed gives a problem instead."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            texts = extract_docstrings(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return Module(id, problem="file that cannot be read or parsed")
    english = [text for text in texts if is_english(text)]
    cleaned = (tuple(split_sentences(clean_docstring(text))) for text in english)
    return Module(id, tuple(filter(None, cleaned)), not_english=len(texts) - len(english))


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def extract_docstrings(source: bytes) -> list[str]:
    """Docstrings of a module, its classes and functions in source order."""
    docstrings: list[str] = []

    def collect(node: ast.AST) -> None:
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            docstrings.append(text)
        # only blocks of statements hold definitions: walking expressions too would take most of the time
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            for child in getattr(node, field, ()):
                collect(child)

    # a docstring across lines is written with three quotes: most of the files without any are data
    if b'"""' in source or b"'''" in source:
        collect(ast.parse(source))
    return docstrings


def is_english(text: str) -> bool:
    """Whether a text is mostly ASCII letters: a cheap rule that drops other scripts, tables and art."""
    if half_character(text) is not None:
        return False
    compact = "".join(text.split())
    encoded = compact.encode()
    letters = len(encoded) - len(encoded.translate(None, _LETTERS))
    foreign = len(compact) - len(compact.encode("ascii", "ignore"))
    return letters > _MIN_LETTER_SHARE * len(compact) and foreign <= _MAX_FOREIGN_SHARE * len(compact)


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_FENCE = re.compile(r"^\s*```")
# a directive for code or formulas, or a line that announces a literal block; other directives hold prose
_OPENS_LITERAL = re.compile(
    r"^\s*(\.\.\s+(?P<directive>code|code-block|sourcecode|math|doctest|testcode|testoutput|plot|ipython|parsed-literal)::"
    r"|(?!\.\.\s).*::\s*$)"
)
# underlines, and the headings of examples, most of which are code
_NO_PROSE = re.compile(r"^\W*(Examples?\W*)?$")
_CITATION_MARK = re.compile(r"^\s*\.\.\s+(?=\[)")
# list items, fields of Sphinx and Epydoc, directives, "name : type" and "name (type): text", a heading's colon
_OPENS_SENTENCE = re.compile(
    r"^\s*([-*+•]\s|\d+[.)]\s|[:@]\w|\.\.\s|\*{0,2}`{0,2}\w[\w.]*`{0,2}(,\s\*{0,2}\w+)*\s*(\(.*\))?\s*:(\s|$))"
)


def clean_docstring(text: str) -> str:
    """Prose of a docstring: no doctests (until a blank line), fenced or indented literal blocks, underlines or headings
    of examples. Blank lines are put before list items, parameters and fields, so that each begins a sentence.
    """
    kept: list[str] = []
    fenced = doctest = False
    literal_indent: int | None = None
    for line in _CONTROL.sub(" ", text).split("\n"):
        if _FENCE.match(line):
            fenced = not fenced
            continue
        blank = not line.strip()
        indent = len(line) - len(line.lstrip())
        doctest = not blank and (doctest or line.lstrip().startswith(">>>"))
        if literal_indent is not None and not blank and indent <= literal_indent:
            literal_indent = None
        if fenced or doctest or (literal_indent is not None and not blank):
            continue
        if literal := _OPENS_LITERAL.match(line):
            literal_indent = indent
            if literal.group("directive"):
                continue
        if _NO_PROSE.match(line):
            kept.append("")
        elif _OPENS_SENTENCE.match(line):
            kept.extend(["", _CITATION_MARK.sub("", line)])
        else:
            kept.append(line)
    return "\n".join(kept)


def documents_of_modules(modules: Sequence[Module], min_words: int, tally: Tally) -> Iterator[Document]:
    """A document of each module that is long enough; a docstring that stands in several modules is in the first one.

    Args:
        modules: sorted by id.
    """
    seen: set[str] = set()
    for module in modules:
        tally.dropped["docstring not English"] += module.not_english
        if module.problem:
            tally.dropped[module.problem] += 1
        sentences: list[str] = []
        for docstring in module.docstrings:
            if (text := " ".join(docstring)) in seen:
                tally.dropped["duplicate docstring"] += 1
            else:
                seen.add(text)
                sentences += docstring
        if sentences:
            yield from cut_document(module.id, sentences, min_words, tally, module.group)
