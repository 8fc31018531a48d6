"""Trials of input: configs and flags that people mistype, paste, generate or think up."""

import contextlib
import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from campaign import trees
from campaign.commands import Command, Ended, Running
from campaign.schema import fits, schema_of_configs
from campaign.trial import LIMIT, Attempt, Outcome, Sandbox
from campaign.verdicts import Disturbance, Verdict

VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 3, 7, 8, 63, 64, 1000, 10**5, 10**7, 2**31, 2**32, 2**63 - 1, 2**63, 2**64),
    *(10**12, 10**30, 10**400, -(10**30), 0.0, -0.0, 0.5, 0.999, 0.9999999, 1.0, 1.5, 1e-320, 1e-300, 1e-30, 1e30),
    *(1e308, float("nan"), float("inf"), float("-inf")),
    *("", " ", "x", "0", "1", "true", "null", "nan", "1e3", "64", "/proc", "~", "\x00", "a\x00b", "ü", "\ud800"),
    *("x" * 300, "x" * 70_000, "%s", "{}", "$(touch hacked)", "; touch hacked", "-1", "--help", "softmax", "nystrom"),
    *([], [[]], [1], ["mlm"], ["sop"], ["mlm", "mlm"], [None], {}, {"name": "nystrom"}, {"name": "x"}, {"a": {"b": 1}}),
    *(["nystrom"] * 2, ["softmax", {"name": "nystrom", "num_landmarks": 4}], {"name": ["nystrom"]}),
)
"""What may stand where something else is meant. No path leads to where a file outside the trial's can be written."""
_SHORT_WORDS = """
    x -1 0 1 2 3 8 16 63 99999999999 0.0 0.5 1.5 1e-320 1e-300 1e30 1e400 nan inf -inf 1e3 0x10 1_000 ١
    8,16 8,,16 , 8,8 1e-3,x 0,1,2 last best all train hub auto cuda cpu:99 MRPC paper SST-2,SST-2 mrpc
    model dataset glue . /proc /dev/null /proc/self/mem /proc/nonexistent ~ -- --help -h %s a=b =
    wiki=0 wiki=-1 wiki=1/0 wiki=1e9 wiki=nan model.num_layers model.num_layers= model.num_layers=2
    model={} pretraining_setting.epoch=1 seed=1 a.b.c.d=1 model.dropout_prob=nan
"""
WORDS: tuple[str, ...] = (
    *("", " ", str(2**63), str(2**64), "1" * 400, "x" * 300, "ü" * 200, "a/" * 2000, "$(touch hacked)"),
    *_SHORT_WORDS.split(),
)
"""What may stand behind a flag."""
_SHOWN = 60
"""Characters of a word that an error shows, a quotation mark included."""
_NOT_TYPED = {"--help", "--host", "--hub"}
"""Flags that lead out of the sandbox, or to no run."""
_AT_WORK = re.compile(r"step \d+/\d+|scored|predicting|tokens/s|parameters, cpu")
_REMOVING = ("--discard_weights", "--overwrite", "--force")
"""Flags that ask for something to be removed."""
_PATIENCE = 4
"""Seconds after which a run that is at work was accepted: what is asked for may take days."""


@dataclass(frozen=True)
class _Input:
    """What is typed: a config's text, and flags in place of the scene's."""

    what: str
    names: tuple[str, ...]
    text: bytes | None = None
    flags: tuple[str, ...] | None = None
    refused: bool = False


def inputs(attempt: Attempt) -> Outcome:
    """A config or a flag that is not what it should be."""
    sandbox = attempt.open(attempt.choose())
    command = sandbox.prepared.scene.commands[0]
    typed = _typed(attempt.draw, sandbox)
    if typed.text is not None:
        (sandbox.folder / _config_of(command)).write_bytes(typed.text)
    if typed.flags is not None:
        command = replace(command, flags=typed.flags)
    before = trees.listing(sandbox.folder)
    ended = _watched(command, sandbox, attempt.real)
    return attempt.outcome(sandbox, typed.what[:400], _judge(typed, ended, sandbox, before))


def _judge(typed: _Input, ended: Ended, sandbox: Sandbox, before: trees.Tree) -> Verdict:
    disturbance = Disturbance(typed.what, None, typed.names, edited=not typed.refused)
    verdict = sandbox.judge(disturbance, ended, before)
    if (sandbox.folder / "hacked").exists():
        return Verdict("silent", "what was typed was run")
    if verdict.kind == "lost" and ended.status == 0 and set(_REMOVING) & set(typed.flags or ()):
        return Verdict("legitimate")
    replaced = sandbox.prepared.is_preprocessing and "an unfinished run with other parameters" in ended.text
    if verdict.kind == "lost" and replaced:
        kind = "clear error" if ended.status == 2 else "legitimate"
        return Verdict(kind, "an unfinished run was replaced, and it says so")
    if typed.refused and ended.status == 0:
        return Verdict("silent", "accepted")
    return verdict


def _watched(command: Command, sandbox: Sandbox, real: bool) -> Ended:
    """Run it, but not to its end where it has long begun to do what was asked for."""
    running = Running(command, sandbox.folder, real, output=sandbox.output)
    patience = _PATIENCE + 6 * real
    running.wait(patience)
    end, first, grew = time.monotonic() + LIMIT - patience, _progress(running, sandbox), False
    while running.poll() is None and time.monotonic() < end and not grew:
        running.wait(0.2)
        # That it began is not enough: it has to get on.
        now = _progress(running, sandbox)
        began = bool(_AT_WORK.search(running.so_far()))
        grew, first = began and now != first, now if not began else first
    accepted = running.poll() is None and grew
    ended = running.end(0)
    return replace(ended, status=0) if accepted else ended


def _progress(running: Running, sandbox: Sandbox) -> tuple[object, ...]:
    """What grows while a run is at work: its output, and its files."""
    sizes = []
    for path in sorted(sandbox.folder.rglob("*")):
        with contextlib.suppress(OSError):  # gone meanwhile
            stat = path.lstat()
            sizes.append((str(path), stat.st_size, stat.st_mtime_ns))
    return running.so_far(), *sizes


def _typed(draw: random.Random, sandbox: Sandbox) -> _Input:
    command = sandbox.prepared.scene.commands[0]
    config = _config_of(command)
    has_config = (sandbox.folder / config).is_file() and "run_report" not in command.script
    choice = draw.random()
    if has_config and choice < 0.5:
        return _value(draw, (sandbox.folder / config).read_text())
    if has_config and choice < 0.65:
        return _text(draw, (sandbox.folder / config).read_bytes())
    return _flag(draw, command, _flags_of(command, sandbox))


def _flags_of(command: Command, sandbox: Sandbox) -> list[str]:
    """What the command's help lists."""
    first = [word for word in command.flags[:1] if not word.startswith("-")]
    shown = sandbox.run(replace(command, flags=(*first, "--help"))).stdout
    return sorted(set(re.findall(r"--[a-z][a-z_]+", shown)) - _NOT_TYPED)


def _config_of(command: Command) -> str:
    flags = list(command.flags)
    return f"{flags[flags.index('--model') + 1]}/config.json" if "--model" in flags else "config.json"


def _value(draw: random.Random, text: str) -> _Input:
    """A key with another value, gone, twice, elsewhere, or one that does not exist."""
    data, keys = json.loads(text), _keys()
    section, key = draw.choice(keys)
    value, choice = draw.choice(VALUES), draw.random()
    holder = data.setdefault(section, {}) if section else data
    if choice < 0.75:
        holder[key] = value
    elif choice < 0.85:
        holder.pop(key, None)
        return _config(f"config: without {section}.{key}", key, data)
    elif choice < 0.9:
        section, value = draw.choice(["model", "pretraining_setting", "gpu_setting"]), draw.choice(VALUES)
        data[section] = value
        return _config(f"config: {section} is {value!r}", key, data)
    elif choice < 0.95:
        count = draw.choice((1, 20, 2000))
        data[section or "model"] = {f"{key}_{number}": value for number in range(count)}
        return _config(f"config: {count} unknown keys in {section}", key, data)
    else:
        twice = text.replace("{", '{"model": {}, "model": {},', 1)
        return _Input("config: keys twice", ("config.json",), twice.encode())
    # A place where nothing can be written is named itself.
    place = (value,) if isinstance(value, str) and value.startswith("/") else ()
    return _config(f"config: {section}.{key} is {value!r}", key, data, place)


def _config(what: str, key: str, data: Any, more: tuple[str, ...] = ()) -> _Input:
    """A config with a value in it; what the schema does not allow has to be refused."""
    return _Input(what, ("config.json", key, *more), _dump(data), refused=not fits(data, schema_of_configs()))


def _keys() -> list[tuple[str, str]]:
    """Every section and key that a config may have."""
    schema = schema_of_configs()
    keys = [("", key) for key in schema["properties"] if not key.startswith("$")]
    parts = {"model": "ModelConfig", "pretraining_setting": "PretrainingConfig", "gpu_setting": "GpuConfig"}
    for section, name in parts.items():
        keys += [(section, key) for key in schema["$defs"][name]["properties"]]
    return keys


def _dump(data: Any) -> bytes:
    return json.dumps(data, indent=1).encode("utf-8", "surrogatepass")


def _text(draw: random.Random, text: bytes) -> _Input:
    """A config.json that an editor, a copy or a merge has spoilt."""
    place = draw.randrange(len(text))
    digit = draw.choice([found.start() for found in re.finditer(rb"\d", text)])
    ways: dict[str, bytes] = {
        "cut off": text[:place],
        "a byte changed": text[:place] + draw.randbytes(1) + text[place + 1 :],
        "a byte removed": text[:place] + text[place + 1 :],
        "a byte order mark": b"\xef\xbb\xbf" + text,
        "UTF-16": text.decode().encode("utf-16"),
        "NUL bytes": text[:place] + b"\x00\x00" + text[place:],
        "empty": b"",
        "blank": b" \n",
        "null": b"null",
        "a list": b"[" + text + b"]",
        "deep": b'{"model": ' * 50_000,
        "5,000 digits": text[:digit] + b"9" * 5000 + text[digit:],
        "an exponent": text[:digit] + b"1e400" + text[digit + 1 :],
        "a comment": b"// settings\n" + text,
        "a comma": text.replace(b"\n}", b",\n}"),
        "conflict marks": text[:place] + b"\n<<<<<<< HEAD\n" + text[place:],
        "twice": text * 2,
        "NaN": text[:digit] + b"NaN" + text[digit + 1 :],
    }
    way = draw.choice(sorted(ways))
    return _Input(f"config.json: {way}", ("config.json",), ways[way])


def _flag(draw: random.Random, command: Command, names: Sequence[str]) -> _Input:
    """A flag with another word behind it, twice, without one, or that does not exist."""
    flags = list(command.flags)
    name, word, choice = draw.choice(names), draw.choice(WORDS), draw.random()
    if choice < 0.85:
        place = flags.index(name) if name in flags else len(flags)
        flags[place : place + 2] = [name, word]
        if draw.random() < 0.1:
            flags += [name, draw.choice(WORDS)]
        refused = name == "--model" and word == ""
        return _Input(f"{name} {word!r}", _names(flags, name), flags=tuple(flags), refused=refused)
    more = (name,) if choice < 0.9 else (word,) if choice < 0.95 else (f"{name}x", word)
    return _Input(f"{' '.join(more)!r} at the end", _names(flags, more[0]), flags=(*flags, *more))


def _names(flags: Sequence[str], name: str) -> tuple[str, ...]:
    """Words of which an error about a flag says one: the flag, what stands behind it, or the setting's name."""
    plain = name.lstrip("-")
    behind = [flags[place + 1] for place, flag in enumerate(flags[:-1]) if flag == name]
    # Of a word such as -inf an error names the option -i.
    short = [each[:2] for each in (name, *flags) if re.match("-[^-]", each)]
    # As errors show it: in ASCII, and what is long by its beginning.
    shown = [ascii(each)[1:-1] for each in (name, *behind)]
    shown = [f"{each[: _SHOWN - 1]}…" if len(each) > _SHOWN - 2 else each for each in shown]
    return tuple(
        dict.fromkeys(each for each in (name, plain, plain.replace("_", " "), *behind, *short, *shown) if each)
    )
