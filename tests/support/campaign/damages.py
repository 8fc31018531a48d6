"""What disks, copies, editors and other programs do to a file, and what a machine answers for a while."""

import builtins
import errno
import io
import itertools
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from campaign.commands import Hook
from campaign.files import remove

Change = Callable[[random.Random, bytes], bytes]
"""New content out of a file's content."""


def damage_file(draw: random.Random, path: Path) -> str:
    """Damage a file in one of many ways, drawn at random. Returns it in words."""
    if draw.random() < 0.2:
        remove(path)
        if draw.random() < 0.5:
            return "gone"
        path.mkdir()
        return "a folder in its place"
    content = path.read_bytes()
    fitting = _OF_A_FORMAT.get(path.suffix)
    name, change = fitting if fitting and draw.random() < 0.4 else draw.choice(_CHANGES)
    try:
        changed = change(draw, content)
    except (ValueError, IndexError):  # nothing to draw from, or no JSON
        changed = content
    if changed == content:
        name, changed = "written twice", content * 2 or b"\x00"
    path.write_bytes(changed)
    return name


def _flip_bit(draw: random.Random, content: bytes) -> bytes:
    place, bit = draw.randrange(len(content)), draw.randrange(8)
    return content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]


def _choose_range(draw: random.Random, content: bytes) -> tuple[int, int]:
    first = draw.randrange(len(content))
    return first, min(len(content), first + 1 + int(len(content) ** draw.random()))


def _write_zeros(draw: random.Random, content: bytes) -> bytes:
    first, last = _choose_range(draw, content)
    return content[:first] + bytes(last - first) + content[last:]


def _write_noise(draw: random.Random, content: bytes) -> bytes:
    first, last = _choose_range(draw, content)
    return content[:first] + draw.randbytes(last - first) + content[last:]


def _remove_bytes(draw: random.Random, content: bytes) -> bytes:
    first, last = _choose_range(draw, content)
    return content[:first] + content[last:]


_CHANGES: list[tuple[str, Change]] = [
    ("a bit flipped", _flip_bit),
    ("a range zeroed", _write_zeros),
    ("a range of noise", _write_noise),
    ("truncated", lambda draw, content: content[: draw.randrange(len(content))]),
    ("bytes removed", _remove_bytes),
    ("emptied", lambda draw, content: b""),
    ("text of something else", lambda draw, content: b"<html><body>404 Not Found</body></html>\n"),
]


def _change_value(draw: random.Random, content: bytes) -> bytes:
    """One value of a JSON document is another one, or gone."""
    data = json.loads(content)
    holder, key = draw.choice(list(_find_places(data)))
    if draw.random() < 0.2:
        del holder[key]
    else:
        holder[key] = draw.choice((None, True, -1, 0, 2**63, 0.5, float("nan"), "", "x", [], {}, {"a": 1}))
    return json.dumps(data, indent=2).encode()


def _find_places(data: Any) -> Any:
    """Every holder and key of a nest."""
    items = list(data.items()) if isinstance(data, dict) else list(enumerate(data)) if isinstance(data, list) else []
    for key, value in items:
        yield data, key
        yield from _find_places(value)


def _change_line(draw: random.Random, content: bytes) -> bytes:
    """A line among others is no record, or one is cut, there twice or gone."""
    lines = content.splitlines(keepends=True)
    place = draw.randrange(len(lines))
    line, odd = lines[place], draw.choice((b"\n", b"null\n", b"{}\n", b'{"step": "x"}\n', b"\xff\xfe\n"))
    lines[place : place + 1] = draw.choice(([], [line, line], [line[: len(line) // 2] + b"\n"], [odd, line]))
    return b"".join(lines)


_OF_A_FORMAT: dict[str, tuple[str, Change]] = {
    ".json": ("another value", _change_value),
    **dict.fromkeys((".jsonl", ".tsv", ".txt", ".csv"), ("an odd line", _change_line)),
}


def fails_to_open(path: Path, name: str, after: int) -> Hook:
    """From now on opening the file fails with an error of this name; the first `after` times it does not."""
    numbers = itertools.count()

    def refusing(real: Callable[..., Any]) -> Callable[..., Any]:
        def opens(file: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(file, int) and os.path.abspath(os.fsdecode(file)) == str(path) and next(numbers) >= after:
                raise _create_error(name, path)
            return real(file, *args, **kwargs)

        return opens

    def hook() -> None:
        os.open = refusing(os.open)
        builtins.open = io.open = refusing(io.open)  # type: ignore[assignment]  # what pathlib calls

    return hook


def fails_to_write(name: str, after: int) -> Hook:
    """The file that is renamed to its final name as number `after` cannot be."""
    numbers = itertools.count(1)

    def rename(real: Callable[[], None], source: Any, target: Any) -> None:
        if next(numbers) == after:
            raise _create_error(name, source)
        real()

    return lambda: _replace_rename(rename)


def dies_after(name: str) -> Hook:
    """The process is gone at once when a file of this name is in its place: a kill at a moment that repeats."""

    def rename(real: Callable[[], None], source: Any, target: Any) -> None:
        real()
        if Path(target).name == name:
            os._exit(137)

    return lambda: _replace_rename(rename)


def _replace_rename(act: Callable[[Callable[[], None], Any, Any], None]) -> None:
    """From now on in this process call `act` in place of a rename or a link: with that, its source and its target."""

    def acting(real: Callable[..., None]) -> Callable[..., None]:
        return lambda source, target, **kwargs: act(lambda: real(source, target, **kwargs), source, target)

    os.replace, os.link = acting(os.replace), acting(os.link)


def _create_error(name: str, file: Any) -> OSError:
    number = getattr(errno, name)
    return OSError(number, os.strerror(number), os.fsdecode(file))
