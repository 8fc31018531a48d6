"""A small valid config.json, and a way to write one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WriteConfig = Callable[[object], Path]


@pytest.fixture
def valid() -> dict[str, Any]:
    """Plain data of a config.json that only has the required keys."""
    return {
        "model": {
            "vocab_size": 100,
            "max_seq_len": 32,
            "embedding_dim": 12,
            "transformer_dim": 12,
            "transformer_hidden_dim": 24,
            "num_layers": 2,
            "num_head": 3,
            "head_dim": 4,
            "attn_type": "softmax",
        },
        "pretraining_setting": {
            "batch_size": 8,
            "learning_rate": 1e-3,
            "warmup": 0.1,
            "batches_per_epoch": 5,
            "epoch": 3,
            "validate_batches_per_epoch": 2,
        },
        "gpu_setting": {"inst_per_gpu": 4},
    }


@pytest.fixture
def write_config(tmp_path: Path) -> WriteConfig:
    """Writes text, bytes or data as a config.json and returns its path."""

    def write(content: object) -> Path:
        path = tmp_path / "config.json"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write
