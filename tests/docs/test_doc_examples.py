"""Taking code blocks out of a page, and applying them."""

from pathlib import Path

import pytest
from doc_examples import Block, apply, blocks, commands

PAGE = """# Page

```
outside
```

## One

`a/new.py`, a new file:

```python
# no heading
x = 1
```

### Smaller

`a/old.py`:

```diff
 b
-c
+C

 d
@@
+at the end of e
 e
```

Then

```bash
# a comment
python run.py --flag \\
  "two words"   # -> out
```

## Two

```
after
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path / "page.md"


def test_blocks_of_a_section(page: Path) -> None:
    first, second, third = blocks(page, "One")
    assert first == Block("a/new.py", "python", "# no heading\nx = 1\n")
    assert (second.file, second.language) == ("a/old.py", "diff")
    assert (third.file, commands([first, second, third])) == (None, [["python", "run.py", "--flag", "two words"]])
    assert [block.text for block in blocks(page, "Two")] == ["after\n"]
    assert blocks(page, "Smaller") == [second, third]
    with pytest.raises(AssertionError, match="no section 'Three'"):
        blocks(page, "Three")


def test_files_are_written_and_changed(page: Path, tmp_path: Path) -> None:
    old = tmp_path / "a" / "old.py"
    old.parent.mkdir()
    old.write_text("a\nb\nc\n\nd\ne\n")
    assert apply(blocks(page, "One"), tmp_path) == [tmp_path / "a" / "new.py", old]
    assert (tmp_path / "a" / "new.py").read_text() == "# no heading\nx = 1\n"
    assert old.read_text() == "a\nb\nC\n\nd\nat the end of e\ne\n"


@pytest.mark.parametrize(("text", "times"), [("a\n", 0), ("b\nc\n\nd\n" * 2, 2)])
def test_a_change_of_what_is_not_there_fails(page: Path, tmp_path: Path, text: str, times: int) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old.py").write_text(text)
    with pytest.raises(AssertionError, match=rf"expected once in a/old\.py, found {times} times"):
        apply([block for block in blocks(page, "One") if block.language == "diff"], tmp_path)
