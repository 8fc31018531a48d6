"""Reading config.json: every mistake at once, in one UserError."""

import ast
import inspect
import itertools
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
from .network import ModelConfig
from .overrides import apply_overrides, parse_json
from .schema import ExperimentConfig, GpuConfig, PretrainingConfig

SCHEMA_FILE = Path(__file__).with_name("config.schema.json")
_OBJECTS: dict[str, type[StrictModel]] = {
    **ATTENTIONS,
    "model": ModelConfig,
    "pretraining_setting": PretrainingConfig,
    "gpu_setting": GpuConfig,
}


class _Described(GenerateJsonSchema):
    """With the docstrings as descriptions. pydantic itself would read them at each start of a command, in 0.1 s."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False  # a title would only repeat the key

    def model_schema(self, schema: Any) -> dict[str, Any]:
        found = super().model_schema(schema)
        found["description"] = " ".join(found["description"].split())
        if "name" in found["properties"]:
            # In Python the class says which attention it is; in JSON only the name does.
            found["properties"]["name"]["description"] = found["description"]
            found["required"] = ["name", *found.get("required", [])]
        for kind in (each for each in schema["cls"].__mro__ if issubclass(each, StrictModel)):
            body = ast.parse(inspect.getsource(kind)).body[0].body  # type: ignore[attr-defined]
            for pair in itertools.pairwise(body):
                match pair:
                    case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))) if name in kind.model_fields:
                        key = kind.model_fields[name].alias or name
                        found["properties"][key].setdefault("description", " ".join(text.split()))
        return found


def load_config(path: Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """The experiment of the config.json at `path`, with "section.key=value" overrides written over it.

    Raises UserError if the file cannot be read, is not JSON, or has any key missing, unknown, given twice or set to
    an impossible value: all of these together, a line each.
    """
    try:
        # Editors on Windows may put a byte order mark first.
        data = parse_json(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(_no_such(path)) from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    if isinstance(data, dict) and "model_type" in data and "model" not in data:
        raise UserError(
            f"{path}: the config.json of a transformers model: first import it with "
            f"run_export.py import {path.parent} DEST, then use DEST here"
        )
    problems = apply_overrides(data, overrides) if isinstance(data, dict) else []
    source = f"{path} with {', '.join(map(quoted, overrides))}" if overrides else str(path)
    return experiment_config(data, source, problems)


def experiment_config(data: object, source: str, problems: Sequence[Problem] = ()) -> ExperimentConfig:
    """The experiment that already parsed `data` describes, such as a checkpoint's.

    Args:
        source: names it in messages.
        problems: what else is wrong with it.

    Raises UserError with every mistake, a line each.
    """
    mistakes = list(problems)
    try:
        config = ExperimentConfig.model_validate(data)
    except ValidationError as error:
        mistakes += describe_errors(error, data, ExperimentConfig, _OBJECTS)
    if mistakes:
        raise UserError(f"{source}: {number_of(len(mistakes), 'problem')}{listed(mistakes)}")
    return config


def json_schema() -> dict[str, Any]:
    """The JSON schema of config.json, for editors."""
    schema = ExperimentConfig.model_json_schema(schema_generator=_Described)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _no_such(path: Path) -> str:
    folder = path.parent
    if folder.exists():
        return f"{path}: no such file; name an experiment's folder, or copy a config.json, such as nystrom-512's"
    if folder == Path("/model"):
        return f"{folder}: no such folder; outside of a container name the experiment's folder: --model FOLDER"
    there = [each for place in (folder.parent, PROJECT, EXPERIMENTS) for each in place.glob("*/config.json")]
    hint = nearest(folder.name, [each.parent.name for each in there])
    return f"{folder}: no such folder{hint or '; expected an experiment folder with config.json'}"
