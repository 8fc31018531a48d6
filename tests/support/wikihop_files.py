"""Small files of WikiHop's form."""

import json
from pathlib import Path
from typing import Any


def record(number: int, **changes: Any) -> dict[str, Any]:
    made = {
        "id": f"WH_train_{number}",
        "query": f"country river {number}",
        "answer": "wales",
        "candidates": ["france", "wales", "the river"][: 2 + number % 2],
        "supports": [f"The river {number} flows from Wales to France. " * (1 + i) for i in range(number % 4)],
        "annotations": [],
    }
    return {key: value for key, value in (made | changes).items() if value is not ...}


RECORDS = [record(number) for number in range(9)]


def write_records(path: Path, records: Any = RECORDS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(records, ensure_ascii=False), encoding="utf-8")
    return path
