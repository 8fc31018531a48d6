"""The items of a JSON list in a file, one after the other: of a large file no more is held than an item."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError, reading
from nystromformer.reading import json_problem, size_text

MOST_CHARACTERS = 1 << 24
"""Of an item; the largest of WikiHop's training instances has about 100,000."""
_BLOCK_BYTES = 1 << 20
_LONGEST_WORD = 16
"""Characters from the end of what was read in which an error may be that there is more to read: literals, escapes."""
_BEHIND = (" ", "\t", "\n", "\r", ",", "]")
_SPACE = re.compile(r"[ \t\n\r]*")
_KINDS = {"{": "an object", '"': "a text", "t": "a truth value", "f": "a truth value", "n": "null"}


def list_items(path: Path, advice: str) -> Iterator[Any]:
    """The items of the list that a JSON file holds.

    Raises:
        UserError: it is not UTF-8, no JSON or no list; or an item is too long, nested too deep, or has an integer of
            more digits than Python reads. Names the place, and ends in `advice`.
    """
    text = _Text(path, advice)
    with text:
        if text.next_character() != "[":
            raise text.no_list()
        text.advance(1)
        if text.next_character() != "]":
            yield text.item()
            while text.next_character() == ",":
                text.advance(1)
                text.next_character()
                yield text.item()
        if text.next_character() != "]":
            raise text.error("Expecting ',' delimiter")
        text.advance(1)
        if text.next_character():
            raise text.error("Extra data")


class _Text:
    """A file's text from a place on, read as it is needed."""

    def __init__(self, path: Path, advice: str) -> None:
        self._path = path
        self._advice = advice
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._parse = json.JSONDecoder().raw_decode
        self._buffer = ""
        self._at = 0
        self._bytes = 0
        self._ended = False
        # of the text that is not held any more
        self._characters = self._lines = 0
        self._column = 0

    def __enter__(self) -> _Text:
        self._size = self._path.stat().st_size
        self._file = self._path.open("rb")
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def next_character(self) -> str:
        """The next character that is no white space; empty at the end."""
        while True:
            space = _SPACE.match(self._buffer, self._at)
            assert space is not None, "it matches nothing, too"
            self._at = space.end()
            if self._at < len(self._buffer) or not self._more():
                return self._buffer[self._at : self._at + 1]

    def advance(self, characters: int) -> None:
        self._at += characters

    def item(self) -> Any:
        """The value that begins here."""
        while True:
            try:
                value, end = self._parse(self._buffer, self._at)
            except json.JSONDecodeError as error:
                goes_on = error.msg.startswith("Unterminated") or error.pos > len(self._buffer) - _LONGEST_WORD
                if goes_on and len(self._buffer) - self._at > MOST_CHARACTERS:
                    raise self._too_long() from None
                at = self._at
                if not goes_on or not self._more():
                    raise self.error(error.msg, error.pos - at + self._at) from None
                continue
            except (ValueError, RecursionError) as error:
                raise self._problem(json_problem(error)) from None
            # a number may go on, too
            is_whole = self._buffer[end : end + 1] in _BEHIND or end + _LONGEST_WORD < len(self._buffer)
            length = end - self._at
            if length > MOST_CHARACTERS:
                raise self._too_long()
            if (end < len(self._buffer) and is_whole) or not self._more():
                self._at += length
                return value

    def no_list(self) -> UserError:
        """What is said of a file whose first character begins no list."""
        character = self.next_character()
        if not character or (character not in _KINDS and character not in "-0123456789"):
            return self.error("Expecting value")
        kind = _KINDS.get(character, "a number")
        return UserError(f"{self._path}: expected a JSON list of instances, found {kind}. {self._advice}")

    def error(self, message: str, at: int | None = None) -> UserError:
        """An error of syntax, with its place."""
        at = self._at if at is None else at
        line = self._lines + self._buffer.count("\n", 0, at) + 1
        last = self._buffer.rfind("\n", 0, at)
        column = at - last if last >= 0 else self._column + at + 1
        return UserError(
            f"{self._path}: line {line}, column {column} (character {self._characters + at:,} of a file of "
            f"{self._size:,} bytes): expected JSON: {message}. The file is damaged or cut off. {self._advice}"
        )

    def _too_long(self) -> UserError:
        return self._problem(f"an item of more than {size_text(MOST_CHARACTERS)}")

    def _problem(self, what: str) -> UserError:
        place = self._characters + self._at
        return UserError(
            f"{self._path}: expected a JSON list of instances, found {what} from character {place:,} on. {self._advice}"
        )

    def _more(self) -> bool:
        """Read on, and forget what was used; False at the end of the file."""
        if self._ended:
            return False
        used, self._buffer = self._buffer[: self._at], self._buffer[self._at :]
        self._characters += len(used)
        self._lines += used.count("\n")
        self._column = len(used) - used.rfind("\n") - 1 if "\n" in used else self._column + len(used)
        self._at = 0
        with reading(self._path):
            block = self._file.read(_BLOCK_BYTES)
        self._ended = not block
        text = self._decoded(block)
        self._buffer += text
        return bool(block or text)

    def _decoded(self, block: bytes) -> str:
        waiting = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            offset = self._bytes - waiting + error.start
            raise UserError(
                f"{self._path}: expected UTF-8, found the byte 0x{error.object[error.start]:02x} at offset {offset}: "
                f"the file is damaged. {self._advice}"
            ) from None
        self._bytes += len(block)
        return text
