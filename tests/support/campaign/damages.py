"""Damage to a file: what disks, copies, editors, other programs and attackers do."""

import json
import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign import trees

Change = Callable[[random.Random, bytes], bytes]
"""New content out of a file's content."""


@dataclass(frozen=True)
class Damage:
    """A way to damage a file.

    content: whether the file stays a file with other bytes in it.
    apply: damages the file at a path; nothing where the file is not of the kind that it takes.
    """

    name: str
    content: bool
    apply: Callable[[random.Random, Path], None]


class NotOfThisKind(Exception):
    """The damage needs another kind of file."""


def any_damage(draw: random.Random, path: Path) -> Damage:
    """A damage for a file, drawn at random; one made for its format half of the time."""
    fitting = _FITTING.get(path.suffix, [])
    return draw.choice(fitting if fitting and draw.random() < 0.5 else _GENERAL)


def content_damage(draw: random.Random, path: Path) -> Damage:
    """A damage that leaves a file of the same size."""
    return draw.choice([_changed(name, change) for name, change in _SAME_SIZE.items()])


def _changed(name: str, change: Change) -> Damage:
    def apply(draw: random.Random, path: Path) -> None:
        content = path.read_bytes()
        try:
            changed = change(draw, content)
        except (ValueError, IndexError):
            raise NotOfThisKind from None  # nothing to draw from, or no JSON
        if changed == content:
            raise NotOfThisKind
        with path.open("r+b") as file:  # the same inode
            file.truncate(len(changed))
            file.write(changed)

    return Damage(name, True, apply)


def _bit(draw: random.Random, content: bytes) -> bytes:
    place, bit = draw.randrange(len(content)), draw.randrange(8)
    return content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]


def _byte(draw: random.Random, content: bytes) -> bytes:
    place = draw.randrange(len(content))
    return content[:place] + bytes([(content[place] + draw.randrange(1, 256)) % 256]) + content[place + 1 :]


def _range(draw: random.Random, content: bytes) -> tuple[int, int]:
    first = draw.randrange(len(content))
    return first, min(len(content), first + 1 + int(len(content) ** draw.random()))


def _zeros(draw: random.Random, content: bytes) -> bytes:
    first, last = _range(draw, content)
    return content[:first] + bytes(last - first) + content[last:]


def _noise(draw: random.Random, content: bytes) -> bytes:
    first, last = _range(draw, content)
    return content[:first] + draw.randbytes(last - first) + content[last:]


def _swap(draw: random.Random, content: bytes) -> bytes:
    half = draw.randrange(1, max(2, min(4096, len(content) // 2)))
    first = draw.randrange(max(1, len(content) - 2 * half))
    one, other = content[first : first + half], content[first + half : first + 2 * half]
    return content[:first] + other + one + content[first + 2 * half :]


def _truncate(draw: random.Random, content: bytes) -> bytes:
    return content[: _range(draw, content)[0]]


def _insert(draw: random.Random, content: bytes) -> bytes:
    place = draw.randrange(len(content) + 1)
    return content[:place] + draw.randbytes(draw.randint(1, 64)) + content[place:]


def _remove(draw: random.Random, content: bytes) -> bytes:
    first, last = _range(draw, content)
    return content[:first] + content[last:]


_SAME_SIZE: dict[str, Change] = {
    "a bit flipped": _bit,
    "a byte changed": _byte,
    "a range zeroed": _zeros,
    "a range of noise": _noise,
    "two ranges swapped": _swap,
}
_OTHER_SIZE: dict[str, Change] = {
    "truncated": _truncate,
    "bytes inserted": _insert,
    "bytes removed": _remove,
    "emptied": lambda draw, content: b"",
    "written twice": lambda draw, content: content * 2,
    "zeros": lambda draw, content: bytes(len(content)),
    "text of something else": lambda draw, content: b"<html><body>404 Not Found</body></html>\n",
}


def _replaced(name: str, make: Callable[[random.Random, Path], None]) -> Damage:
    def apply(draw: random.Random, path: Path) -> None:
        trees.remove(path)
        make(draw, path)

    return Damage(name, False, apply)


def _folder(draw: random.Random, path: Path) -> None:
    path.mkdir()
    if draw.random() < 0.5:
        (path / "notes.txt").write_text("what a user keeps here")


def _neighbour(draw: random.Random, path: Path) -> None:
    """Another file's content of the same kind of name."""
    others = [each for each in path.parent.glob(f"*{path.suffix}") if each != path and each.is_file()]
    if not others:
        raise NotOfThisKind
    path.write_bytes(draw.choice(sorted(others)).read_bytes())


_GENERAL = [
    *(_changed(name, change) for name, change in (_SAME_SIZE | _OTHER_SIZE).items()),
    _replaced("gone", lambda draw, path: None),
    _replaced("a folder in its place", _folder),
    _replaced("a FIFO in its place", lambda draw, path: os.mkfifo(path)),
    _replaced("a dangling link in its place", lambda draw, path: path.symlink_to("nowhere")),
    _replaced("a link to itself in its place", lambda draw, path: path.symlink_to(path.name)),
    _replaced("another file of its kind in its place", _neighbour),
]


def _directory(draw: random.Random, content: bytes) -> bytes:
    """A bit of the zip's central directory, as often as not of the attributes that make a record a folder."""
    entries = [found.start() for found in re.finditer(b"PK\x01\x02", content)]
    if draw.random() < 0.3:
        where, bit = draw.choice(entries) + 38, 0x10
    else:
        where, bit = draw.randrange(entries[0], len(content)), 1 << draw.randrange(8)
    return content[:where] + bytes([content[where] ^ bit]) + content[where + 1 :]


_NASTY: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", "x", "\x00", "../../etc", "ü" * 300, [], {}, [[]], [None], {"a": 1}, "0" * 64),
)


def _json_value(draw: random.Random, content: bytes) -> bytes:
    """One value of a JSON document is another one."""
    data = json.loads(content)
    holder, key = draw.choice(list(_places(data)))
    choice = draw.random()
    if choice < 0.2:
        del holder[key]
    elif choice < 0.4 and isinstance(holder[key], int | float):
        holder[key] = holder[key] + draw.choice((-1, 1, 7))
    else:
        holder[key] = draw.choice(_NASTY)
    return json.dumps(data, indent=2).encode()


def _places(data: Any) -> Any:
    """Every holder and key of a nest."""
    items = list(data.items()) if isinstance(data, dict) else list(enumerate(data)) if isinstance(data, list) else []
    for key, value in items:
        yield data, key
        yield from _places(value)


def _deep(draw: random.Random, content: bytes) -> bytes:
    return b"[" * 100_000 if draw.random() < 0.5 else b'{"a":' * 50_000 + b"1" + b"}" * 50_000


def _long_number(draw: random.Random, content: bytes) -> bytes:
    place = draw.choice([found.start() for found in re.finditer(rb"\d", content)])
    return content[:place] + b"9" * 5000 + content[place:]


def _line(draw: random.Random, content: bytes) -> bytes:
    """A line among others is no record, or one is cut, twice there, gone or moved."""
    lines = content.splitlines(keepends=True)
    place = draw.randrange(len(lines) + 1)
    odd = (b"\n", b"null\n", b"[]\n", b"17\n", b"{}\n", b'{"type": "train"}\n', b'{"step": "x"}\n', b"\xff\xfe\n")
    choice = draw.random()
    if choice < 0.6 or not lines:
        return b"".join([*lines[:place], draw.choice(odd), *lines[place:]])
    place = min(place, len(lines) - 1)
    line = lines[place]
    new = draw.choice(([], [line, line], [line[: len(line) // 2] + b"\n"], [line[:-1]], [line[: len(line) // 2]]))
    return b"".join([*lines[:place], *new, *lines[place + 1 :]])


_ZIP = [_changed("a bit of its zip directory", _directory)]
_JSON = [
    _changed("another value", _json_value),
    _changed("nested deeply", _deep),
    _changed("a number of 5,000 digits", _long_number),
]
_LINES = [_changed("an odd line", _line), _changed("a number of 5,000 digits", _long_number)]
_FITTING: dict[str, list[Damage]] = {
    ".cp": _ZIP,
    ".model": _ZIP,
    ".json": [*_JSON, _JSON[0], _JSON[0]],
    ".jsonl": _LINES,
    ".tsv": _LINES,
    ".txt": _LINES,
}
