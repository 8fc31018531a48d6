"""Files that the project wrote and reads again: what is not as it was written is refused in one line."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nystromformer.files.checked_json import STRICT, checked, read_checked, write_checked

VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
DATA = {"format": 2, "accuracy": 0.9134, "rows": {"train": 67349, "ü": [1, -2.5e-7]}, "command": 'say "ü\\n"'}


@dataclass(frozen=True)
class Inner:
    value: float
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Outer:
    name: str
    inner: list[Inner]
    count: int = 0
    __pydantic_config__ = STRICT


@given(st.dictionaries(st.text(), VALUES, max_size=4).filter(lambda data: "sha256" not in data))
def test_what_is_written_is_read(data: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.json"
        write_checked(path, data)
        assert read_checked(path) == data
        path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
        assert read_checked(path) == data, "the order and the space between are no content"


@given(st.integers(0, 10_000), st.integers(0, 7))
@example(102, 5)
def test_a_flipped_bit_is_found(place: int, bit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.json"
        write_checked(path, DATA)
        content = bytearray(path.read_bytes())
        content[place % len(content)] ^= 1 << bit
        path.write_bytes(content)
        try:
            found = read_checked(path)
        except ValueError:
            return
        assert found == DATA, "the e of a number may be an E"


def test_without_its_checksum_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match="made by an earlier version: its sha256 does not match"):
        read_checked(tmp_path / "x.json")
    assert read_checked(tmp_path / "nowhere.json") is None


def test_bytes_that_are_no_text_cost_no_result(tmp_path: Path) -> None:
    write_checked(tmp_path / "x.json", {"command": "python x --model caf\udce9"})
    assert read_checked(tmp_path / "x.json") == {"command": "python x --model caf?"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": "x"}, "inner: missing"),
        ({"name": 1, "inner": []}, "name: expected a valid string, found 1"),
        ({"name": "x", "inner": [{"value": "1"}]}, r'inner\[0\].value: expected a valid number, found "1"'),
        ({"name": "x", "inner": [{"value": float("inf")}]}, r"inner\[0\].value: expected a finite number"),
        ({"name": "x", "inner": [{"value": 1, "more": 2}]}, r"inner\[0\].more: unexpected keyword argument"),
        ({"name": "x", "inner": [], "count": 1.0}, "count: expected a valid integer, found 1.0"),
        ({"name": "x", "inner": {}, "count": "1"}, r"inner: expected .*, found {}"),
        ([], r"expected an object, found \[\]"),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(data: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as error:
        checked(Outer, data)
    assert "\n" not in str(error.value)
    assert checked(Outer, {"name": "x", "inner": [{"value": 1}]}) == Outer("x", [Inner(1.0)])
