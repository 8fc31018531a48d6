"""Configs and flags that people mistype, paste or generate."""

import json
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from campaign.commands import LIMIT, ROOT, Command, Ended, Running, run

_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3, 7, 64, 10**7, 2**63, 10**30, 0.5, 0.999, 1.5, 1e-300, 1e308, float("nan"), float("inf")),
    *("", "x", "1", "true", "nan", "\x00", "ü", "x" * 300, "%s", "$(touch hacked)", "--help", "softmax", "nystrom"),
    *(
        [],
        [1],
        ["mlm"],
        ["mlm", "mlm"],
        [None],
        {},
        {"name": "nystrom"},
        {"name": "x"},
        ["softmax", {"name": "nystrom"}],
    ),
)
"""What may stand where something else is meant in a config.json."""
_WORDS = """
    x -1 0 1 2 3 16 63 99999999999 0.5 1.5 1e-300 1e30 1e400 nan inf 1e3 8,16 8,,16 , last best all train hub auto cuda
    MRPC SST-2 mrpc model dataset glue . /proc /dev/null -- --help %s a=b = wiki=0 wiki=-1 wiki=1e9 wiki=nan
    model.num_layers model.num_layers=2 seed=1 a.b.c.d=1 model.dropout_prob=nan
""".split()  # noqa: SIM905
"""What may stand behind a flag."""
_SHOWN = 60
"""Characters of a word that an error shows, a quotation mark included."""
_NOT_TYPED = {"--help", "--host", "--hub"}
"""Flags that lead out of the sandbox, or to no run."""
_AT_WORK = re.compile(r"step \d+/\d+|scored|predicting|tokens/s|parameters, cpu")
_PATIENCE = 5
"""Seconds after which a run that says that it is at work was accepted: what is asked for may take days."""


@dataclass(frozen=True)
class Input:
    """A command that is typed, what is wrong with it or its config, and words of which an error says one."""

    what: str
    names: tuple[str, ...]
    command: Command


def run_input(typed: Input, folder: Path) -> Ended:
    """Run it, but not to its end where it has long begun to do what was asked for."""
    running = Running(typed.command, folder)
    if running.wait(_PATIENCE) is None and not _AT_WORK.search("".join(running.read_output())):
        running.wait(LIMIT - _PATIENCE)
    accepted = _AT_WORK.search("".join(running.read_output()))
    ended = running.end(0)
    return replace(ended, status=0) if ended.status is None and accepted else ended


def draw_input(draw: random.Random, command: Command, folder: Path) -> Input:
    """A mistake in the command's flags, or in its config, which is written into the folder."""
    flags = list(command.flags)
    config = folder / (flags[flags.index("--model") + 1] if "--model" in flags else ".") / "config.json"
    if not config.is_file() or draw.random() < 0.35:
        return _draw_flag(draw, command, folder)
    text = config.read_bytes()
    if draw.random() < 0.25:
        what, names, text = _spoil_text(draw, text)
    else:
        what, names, text = _change_value(draw, json.loads(text))
    config.write_bytes(text)
    return Input(what, names, command)


def _change_value(draw: random.Random, data: Any) -> tuple[str, tuple[str, ...], bytes]:
    """A key with another value, gone, or one that does not exist."""
    schema = json.loads((ROOT / "code/nystromformer/config/config.schema.json").read_text())
    parts = {"model": "ModelConfig", "pretraining_setting": "PretrainingConfig", "gpu_setting": "GpuConfig"}
    section = draw.choice(list(parts))
    key, value = draw.choice(sorted(schema["$defs"][parts[section]]["properties"])), draw.choice(_VALUES)
    choice = draw.random()
    if choice < 0.8:
        data[section][key] = value
        what = f"{section}.{key} is {value!r}"
    elif choice < 0.9:
        data[section].pop(key, None)
        what = f"without {section}.{key}"
    else:
        data[section] = draw.choice((value, {f"{key}_x": value}))
        what = f"{section} is {data[section]!r}"
    return f"config.json: {what}", ("config.json", key), json.dumps(data, indent=1).encode()


def _spoil_text(draw: random.Random, text: bytes) -> tuple[str, tuple[str, ...], bytes]:
    """A config.json that an editor, a copy or a merge has spoilt."""
    place = draw.randrange(len(text))
    ways = {
        "cut off": text[:place],
        "a byte removed": text[:place] + text[place + 1 :],
        "a byte order mark": b"\xef\xbb\xbf" + text,
        "UTF-16": text.decode().encode("utf-16"),
        "empty": b"",
        "a list": b"[" + text + b"]",
        "a comment": b"// settings\n" + text,
        "a comma": text.replace(b"\n}", b",\n}"),
        "conflict marks": text[:place] + b"\n<<<<<<< HEAD\n" + text[place:],
        "twice": text * 2,
    }
    way = draw.choice(sorted(ways))
    return f"config.json: {way}", ("config.json",), ways[way]


def _draw_flag(draw: random.Random, command: Command, folder: Path) -> Input:
    """A flag with another word behind it, without one, or that does not exist."""
    flags, first = list(command.flags), [word for word in command.flags[:1] if not word.startswith("-")]
    shown = run(replace(command, flags=(*first, "--help")), folder).stdout
    name = draw.choice(sorted(set(re.findall(r"--[a-z][a-z_]+", shown)) - _NOT_TYPED))
    word, choice = draw.choice(_WORDS), draw.random()
    if choice < 0.85:
        place = flags.index(name) if name in flags else len(flags)
        flags[place : place + 2] = [name, word]
        what = f"{name} {word!r}"
    else:
        flags += [name] if choice < 0.93 else [f"{name}x", word]
        what = f"{flags[len(command.flags) :]} at the end"
    return Input(what, _names_of(flags, name), replace(command, flags=tuple(flags)))


def _names_of(flags: list[str], name: str) -> tuple[str, ...]:
    """Words of which an error about a flag says one: the flag, what stands behind it, or the setting's name."""
    behind = [flags[place + 1] for place, flag in enumerate(flags[:-1]) if flag == name]
    # As errors show it: in ASCII, and what is long by its beginning; of a word such as -1 the option.
    shown = [ascii(each)[1:-1][:_SHOWN] for each in behind] + [each[:2] for each in behind if each.startswith("-")]
    plain = name.lstrip("-")
    names = (name, f"{name}x", plain, plain.replace("_", " "), *behind, *shown)
    return tuple(dict.fromkeys(each for each in names if each))
