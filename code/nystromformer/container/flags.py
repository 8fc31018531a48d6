"""The flags of a script that the launcher starts: checked here, before there is a container, and passed on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


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


def split_flags(args: Sequence[str], own: Sequence[Any], script: Sequence[Any]) -> tuple[list[str], ScriptFlags]:
    """The launcher's arguments, and the script's flags.

    Args:
        args: the command line.
        own, script: options that each declares (with `opts` and `is_flag`). A flag that both know is the launcher's,
            and so is one that neither knows, for an error that lists what there is.
    """
    launchers = {name: option for option in own for name in (*option.opts, *option.secondary_opts)}
    scripts = {name: option for option in script for name in option.opts}
    mine: list[str] = []
    theirs: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            mine += [word, *rest]
            break
        is_own = name in launchers or name not in scripts
        option = launchers.get(name) if is_own else scripts[name]
        is_switch = option is None or getattr(option, "is_flag", False)
        # A switch with a value stays whole: the parser says that it takes none.
        words = [word] if is_own or is_switch or not equals else [name, value]
        # A value, too, which may be the name of another flag; where it is missing the parser says so.
        if not is_switch and not equals and rest:
            words.append(rest.pop(0))
        (mine if is_own else theirs).extend(words)
    return mine, ScriptFlags(tuple(theirs))
