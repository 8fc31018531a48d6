"""Reading config.json: every mistake at once, in one UserError."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema

from ..errors import UserError
from ..files.paths import EXPERIMENTS, PROJECT
from ..wording import listed, number_of
from .attention import ATTENTIONS
from .messages import Problem, StrictModel, describe_errors, nearest, quoted
from .network import AlternatingConfig, ModelConfig
from .overrides import apply_overrides, parse_json
from .schema import ExperimentConfig, GpuConfig, PretrainingConfig

SCHEMA_FILE = Path(__file__).with_name("config.schema.json")
_ANY = "*/config.json"
_OBJECTS: dict[str, type[StrictModel]] = {
    **ATTENTIONS,
    "alternating": AlternatingConfig,
    "model": ModelConfig,
    "pretraining_setting": PretrainingConfig,
    "gpu_setting": GpuConfig,
}


class _Untitled(GenerateJsonSchema):
    # A title would only repeat the key.
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def load_config(path: Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """The experiment of the config.json at `path`, with "section.key=value" overrides written over it.

    Raises UserError if the file cannot be read, is not JSON, or has any key missing, unknown, given twice or set to
    an impossible value: all of these together, a line each.
    """
    try:
        data = parse_json(_read(path))
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    if isinstance(data, dict) and "model_type" in data and "model" not in data:
        raise UserError(
            f"{path}: the config.json of a transformers model: first import it with "
            f"run_export.py import {path.parent} DEST, then use DEST here"
        )
    problems = apply_overrides(data, overrides) if isinstance(data, dict) else []
    return _checked(data, f"{path} with {', '.join(map(quoted, overrides))}" if overrides else str(path), problems)


def peek_config(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What `load_config` would check, unchecked; empty where it cannot be read, which `load_config` explains."""
    try:
        data = parse_json(_read(path))
    except (OSError, UserError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    apply_overrides(data, overrides)
    return data


def experiment_config(data: object, source: str, problems: Sequence[Problem] = ()) -> ExperimentConfig:
    """The experiment that already parsed `data` describes, such as a checkpoint's; `source` names it in messages.

    Raises UserError with every mistake, a line each, after `problems` that are known already.
    """
    return _checked(data, source, problems)


def json_schema() -> dict[str, Any]:
    """The JSON schema of config.json, for editors."""
    schema = ExperimentConfig.model_json_schema(schema_generator=_Untitled)
    # Descriptions are docstrings, in which lines are broken.
    unbroken: dict[str, Any] = json.loads(json.dumps(schema).replace(r"\n", " "))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **unbroken}


def _checked(data: object, source: str, problems: Sequence[Problem]) -> ExperimentConfig:
    mistakes = list(problems)
    try:
        config = ExperimentConfig.model_validate(data)
    except ValidationError as error:
        mistakes += describe_errors(error, data, ExperimentConfig, _OBJECTS)
    if not mistakes:
        return config
    raise UserError(f"{source}: {number_of(len(mistakes), 'problem')}{listed(mistakes)}")


def _read(path: Path) -> str:
    """The text of the file; raises UserError if there is none."""
    folder = path.parent
    try:
        # Editors on Windows may put a byte order mark first.
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        if folder.exists():
            raise UserError(
                f"{path}: no such file; create it (copy nystrom-512/config.json, say), or name an experiment's folder: "
                "--model FOLDER, or with the launcher FOLDER alone"
            ) from None
        there = [each.parent.name for parent in (folder.parent, PROJECT, EXPERIMENTS) for each in parent.glob(_ANY)]
        hint = nearest(folder.name, there) or "; expected an experiment folder with config.json"
        if folder == Path("/model"):
            hint = "; outside of a container name the experiment's folder: --model FOLDER"
        raise UserError(f"{folder}: no such folder{hint}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}: line {line}: not UTF-8 text; save the file as UTF-8") from None
