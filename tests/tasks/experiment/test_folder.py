"""What may change between two starts of one run."""

from pathlib import Path
from typing import Any

import pytest
from small import small_config

from nystromformer.errors import UserError
from nystromformer.tasks.experiment.checks import check_resumable


def facts(attn_type: Any) -> dict[str, Any]:
    config = small_config(model__attn_type=attn_type).model_dump(mode="json", by_alias=True)
    return {"config": config, "dataset": "rows"}


def test_by_what_the_attention_is_computed_may_change() -> None:
    before = facts({"name": "nystrom", "implementation": "torch"})
    for now in (facts({"name": "nystrom"}), facts({"name": "nystrom", "implementation": "triton"})):
        assert check_resumable(before, now, Path("cp.cp")) == []
    older = facts({"name": "nystrom"})
    del older["config"]["model"]["attn_type"]["implementation"]
    assert check_resumable(older, before, Path("cp.cp")) == [], "of a version that had one implementation"


def test_the_attention_may_not_change() -> None:
    with pytest.raises(UserError, match=r"model\.attn_type"):
        check_resumable(facts({"name": "nystrom"}), facts({"name": "nystrom", "pinv_iterations": 3}), Path("cp.cp"))
