"""Bodies of requests and answers, as the API's documentation describes them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

import nystromformer
from nystromformer.serve.answers import Answer, Model, Source

_DESCRIBED = ConfigDict(use_attribute_docstrings=True, extra="forbid", allow_inf_nan=False)
_ANSWER = {
    "choices": [{"label": "5", "probability": 0.92}, {"label": "1", "probability": 0.08}],
    "tokens": 14,
    "cut": False,
    "rows": 1,
    "predicted": ["5"],
}


def _with_example(**example: Any) -> ConfigDict:
    return ConfigDict(**_DESCRIBED, json_schema_extra={"examples": [example]})


class Texts(BaseModel):
    """One text, or several."""

    model_config = _DESCRIBED

    text: str | None = Field(default=None, min_length=1)
    """One text. Not together with `texts`."""
    texts: list[str] | None = Field(default=None, min_length=1)
    """Several texts. Not together with `text`."""


class Prediction(BaseModel):
    """The answers to a request's texts, and the time that they took."""

    model_config = _with_example(answers=[_ANSWER], seconds=0.021, encoder_seconds=0.018, softmax_seconds=0.024)

    answers: list[Answer]
    """One for each text, in their order."""
    seconds: float
    """Seconds that the texts waited and were computed."""
    encoder_seconds: float | None = None
    """The encoder's estimated seconds for texts of these lengths, one after another; absent for a model without one."""
    softmax_seconds: float | None = None
    """The same with softmax attention, where it has another one."""


class Status(BaseModel):
    """The answer of a probe."""

    model_config = _DESCRIBED

    status: Literal["ok", "ready"]


class Version(BaseModel):
    """What is served, and by which version."""

    model_config = _DESCRIBED

    version: str
    """Version of this package."""
    model: str
    """The model's name, as on the page."""
    longest: int | None
    """Tokens of the longest row that the model reads; null: it reads texts of any length."""
    source: Source
    """The files that the model was loaded from."""

    @classmethod
    def of(cls, model: Model) -> "Version":
        """That of a model's service."""
        return cls(version=nystromformer.__version__, model=model.name, longest=model.longest, source=model.source)


class Error(BaseModel):
    """Why a request was not answered."""

    model_config = _with_example(error="what is wrong; expected what is right")

    error: str
    """What is wrong and what is expected, in a sentence."""


_ERRORS = {
    400: "The body is not JSON of this form, or the Host header is not one of the service's names.",
    404: "The model's answers have no explanation.",
    408: "The body was not complete in time.",
    413: "The body has too many bytes or too many texts.",
    422: "A text has no answer: it is empty, or the model cannot read it.",
    503: "As many texts wait as may. `Retry-After` gives the seconds after which to try again.",
}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How an endpoint's errors are documented."""
    found: dict[int | str, dict[str, Any]] = {
        status: {"model": Error, "description": _ERRORS[status]} for status in statuses
    }
    if 503 in found:
        found[503]["headers"] = _RETRY_AFTER
    return found


def text_response(media_type: str, description: str) -> dict[int | str, dict[str, Any]]:
    """How an answer that is no JSON is documented."""
    return {200: {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}}
