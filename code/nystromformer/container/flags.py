"""The flags of a script that the launcher starts: checked here, before there is a container, and passed on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ScriptFlags:
    """Flags as (name, value) pairs in the order given; the value of a switch is None.

    Args:
        pairs: the flags.
        words: what is passed on as it is, before them.
    """

    pairs: tuple[tuple[str, str | None], ...] = ()
    words: tuple[str, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        """As arguments of the script."""
        return (*self.words, *(part for name, value in self.pairs for part in (name, value) if part is not None))

    def has(self, name: str) -> bool:
        return any(each == name for each, _ in self.pairs)

    def values(self, name: str) -> list[str]:
        """All values of a flag."""
        return [value for each, value in self.pairs if each == name and value is not None]

    def without(self, name: str) -> ScriptFlags:
        return ScriptFlags(tuple(pair for pair in self.pairs if pair[0] != name), self.words)

    def with_flag(self, name: str, value: str) -> ScriptFlags:
        return ScriptFlags((*self.pairs, (name, value)), self.words)

    def word(self, name: str) -> str | None:
        """The value that counts of a flag among `words`: the last; None where there is none."""
        values = [value for _, value in _in_words(self.words, name)]
        return values[-1] if values else None

    def with_word(self, name: str, value: str) -> ScriptFlags:
        """The same with another value wherever `words` give the flag one."""
        words = list(self.words)
        for index, given in _in_words(self.words, name):
            words[index] = value if words[index] == given else f"{name}={value}"
        return ScriptFlags(self.pairs, tuple(words))


def _in_words(words: Sequence[str], name: str) -> Iterator[tuple[int, str]]:
    """Where words give a flag a value, and the value."""
    flags = words[: words.index("--")] if "--" in words else words
    for index, word in enumerate(flags):
        if word.startswith(f"{name}="):
            yield index, word.removeprefix(f"{name}=")
        elif index > 0 and flags[index - 1] == name:
            yield index, word


def split_flags(args: Sequence[str], own: Sequence[Any], script: Sequence[Any]) -> tuple[list[str], ScriptFlags]:
    """The launcher's arguments, and the script's flags.

    Args:
        args: the command line.
        own, script: options that each declares (with `opts` and `is_flag`). A flag that both know is the launcher's,
            and so is one that neither knows, for an error that lists what there is.
    """
    launchers = {name for option in own for name in (*option.opts, *option.secondary_opts)}
    scripts = {name: option for option in script for name in option.opts}
    mine: list[str] = []
    pairs: list[tuple[str, str | None]] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            return [*mine, word, *rest], ScriptFlags(tuple(pairs))
        if name in launchers or name not in scripts:
            mine.append(word)
            # Its value, too, which may be the name of a script's flag for all that is known here.
            if name in launchers and not equals and rest and not _is_switch(own, name):
                mine.append(rest.pop(0))
        elif getattr(scripts[name], "is_flag", False):
            pairs.append((word, None))  # whole: that a switch takes no value is for the script's own parser to say
        elif equals or rest:
            pairs.append((name, value if equals else rest.pop(0)))
        else:
            pairs.append((name, None))  # its value is missing, which the script's own parser says best
    return mine, ScriptFlags(tuple(pairs))


def _is_switch(options: Sequence[Any], name: str) -> bool:
    return any(name in option.opts and getattr(option, "is_flag", False) for option in options)
