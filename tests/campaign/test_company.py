"""What the campaign says of commands that others disturb: careless ones are found, careful ones are not blamed."""

from collections import Counter
from pathlib import Path

import pytest
from campaign.commands import Command
from campaign.company import changing, strangers, together
from campaign.scenes import Scene, prepare
from campaign.trial import Kind, Trial, try_out

CAREFUL = """
import os, sys, time
from pathlib import Path
def refuse(text):
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)
source, out, parts = Path("in"), Path("out"), Path("out.parts")
for path in (out, parts):
    if os.path.lexists(path):
        refuse(f"{path}: is there already")
text = source.read_bytes()
if not text.isascii() or not text.strip():
    refuse("in: expected text")
try:
    parts.mkdir()
except FileExistsError:
    refuse("out.parts: another command is at work")
time.sleep(0.05)
if source.read_bytes() != text:
    parts.rmdir()
    refuse("in: changed")
(parts / "new").write_bytes(text.upper())
os.link(parts / "new", out)
(parts / "new").unlink()
parts.rmdir()
"""
CARELESS = """
import shutil, time
from pathlib import Path
source, out, parts = Path("in"), Path("out"), Path("out.parts")
length = len(source.read_bytes())
if parts.is_dir() and not parts.is_symlink():
    shutil.rmtree(parts)
new = Path("out.tmp")
with new.open("ab") as file:
    for place in range(length):
        file.write(source.read_bytes()[place : place + 1].upper())
        file.flush()
        time.sleep(0.005)
new.replace(out)
"""


@pytest.mark.parametrize("kind", [strangers, changing, together])
@pytest.mark.parametrize("script", [CAREFUL, CARELESS], ids=["careful", "careless"])
def test_who_is_careless_is_found(tmp_path: Path, kind: Kind, script: str) -> None:
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "world").mkdir()
    (tmp_path / "world" / "in").write_text("a text of some length\n" * 2)
    command = Command(str(tmp_path / "script.py"), ())
    scene = Scene("small", (command,), ("in",), ("out",), edited=("in",), parts="out.parts", read=(("in", 1),))
    small = {"small": prepare(scene, tmp_path / "world", tmp_path / "scenes")}
    outcomes = [try_out(kind, Trial(kind.__name__, number, 3), small, tmp_path / "trial") for number in range(1, 12)]
    kinds = Counter(outcome.verdict.kind for outcome in outcomes)
    bad = [outcome for outcome in outcomes if not outcome.verdict.good]
    assert bool(bad) == (script is CARELESS), kinds
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scenes", "script.py", "world"]
