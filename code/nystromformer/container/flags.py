"""The flags of a script that the launcher starts: checked here, before there is a container, and passed on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class ScriptFlags:
    """A script's arguments as words, in the order given."""

    words: tuple[str, ...] = ()

    def values(self, name: str) -> list[str]:
        """All values of a flag."""
        return [value for _, _, value in self._places(name)]

    def last(self, name: str) -> str | None:
        """The value of a flag that counts; None without the flag."""
        return next(iter(self.values(name)[-1:]), None)

    def without(self, name: str) -> ScriptFlags:
        words = list(self.words)
        for begin, end, _ in reversed(list(self._places(name))):
            del words[begin:end]
        return ScriptFlags(tuple(words))

    def with_value(self, name: str, value: str) -> ScriptFlags:
        """The same with one value of a flag in place of all that it has, if any."""
        return ScriptFlags((*self.without(name).words, name, value))

    def _places(self, name: str) -> Iterator[tuple[int, int, str]]:
        """Where the words of a flag begin and end, and its value."""
        for index, word in enumerate(self.words):
            if word.startswith(f"{name}="):
                yield index, index + 1, word.removeprefix(f"{name}=")
            elif word == name and index + 1 < len(self.words):
                yield index, index + 2, self.words[index + 1]
