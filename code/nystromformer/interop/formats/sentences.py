"""What sentence-transformers does around an encoder: its modules, its pooling, prompts before texts, and lengths."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.files.reading import read_json
from nystromformer.files.writing import write_json

_MODULES, _PARTS = "modules.json", ("Transformer", "Pooling", "Normalize")
"""What comes one after another, and what of that is known."""
_POOLING, _MODE = "1_Pooling", "pooling_mode_"
"""Where it usually says how it pools, and how its keys begin."""
_MODES = {"cls_token": "first", "cls": "first", "mean_tokens": "mean", "mean": "mean"}
_TRANSFORMER, _WHOLE = "sentence_bert_config.json", "config_sentence_transformers.json"
_CONFIG = "config.json"
_KEPT = "sentence_transformers.json"


@dataclass(frozen=True)
class Sentences:
    """What of a folder an experiment keeps beside its tokenizer, for its own vectors and for an export."""

    pooling: str
    """first or mean."""
    max_seq_length: int | None = None
    """Tokens that are read of a text; None: as many as the model takes."""
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    """The name of that which stands before each text, unless another is asked for."""
    lower_case: bool = False
    """Whether texts are in lower case before the tokenizer sees them."""
    part: str = ""
    """Where in the folder the encoder is."""

    @property
    def prefix(self) -> str:
        """What stands before each text."""
        return self.prompts[self.default_prompt_name] if self.default_prompt_name is not None else ""

    def note(self) -> str:
        """What is said of it."""
        said = [f"pooling {self.pooling}"]
        said += [f"{self.max_seq_length} tokens of a text"] if self.max_seq_length else []
        if self.prompts:
            said.append(f"prompts {', '.join(self.prompts)} (default: {self.default_prompt_name or 'none'})")
        said += ["do_lower_case"] if self.lower_case else []
        return f"as in sentence-transformers: {'; '.join(said)}"

    def keep(self, tokenizer: Path) -> None:
        """Write it beside an experiment's tokenizer, which does what is to be done in lower case."""
        write_json(tokenizer / _KEPT, asdict(self) | {"lower_case": False, "part": ""})

    def write(self, folder: Path, width: int) -> None:
        """Write the files that sentence-transformers reads, beside the encoder's."""
        modules = [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}
            for number, (path, name) in enumerate((("", "Transformer"), (_POOLING, "Pooling")))
        ]
        write_json(folder / _MODULES, modules)
        write_json(folder / _TRANSFORMER, {"max_seq_length": self.max_seq_length})
        if self.prompts:
            write_json(folder / _WHOLE, {"prompts": self.prompts, "default_prompt_name": self.default_prompt_name})
        (folder / _POOLING).mkdir()
        modes = {_MODE + name: _MODES[name] == self.pooling for name in ("cls_token", "mean_tokens")}
        write_json(folder / _POOLING / _CONFIG, {"word_embedding_dimension": width, **modes})


def kept_sentences(tokenizer: Path) -> Sentences | None:
    """What was kept beside an experiment's tokenizer; None where nothing was."""
    return Sentences(**read_json(tokenizer / _KEPT)) if (tokenizer / _KEPT).is_file() else None


def read_sentences(folder: Path) -> Sentences | None:
    """What a folder says; None where it is none of sentence-transformers."""
    parts = {"Pooling": _POOLING} if (folder / _POOLING / _CONFIG).is_file() else {}
    if (path := folder / _MODULES).is_file():
        parts = {str(each.get("type")).rpartition(".")[2]: str(each.get("path", "")) for each in read_json(path)}
        if not set(parts) <= set(_PARTS):
            raise UserError(
                f"{path}: expected the parts {', '.join(_PARTS)}, found {', '.join(parts)}: such a model has more "
                "parts than this project's encoder and its pooling; move the file away to import these two"
            )
    if not parts:
        return None
    part = parts.get("Transformer", "")
    pooling = "first" if "Pooling" not in parts else _read_pooling(folder / parts["Pooling"] / _CONFIG)
    own, whole = _read(folder / part / _TRANSFORMER), _read(folder / _WHOLE)
    prompts, default = whole.get("prompts") or {}, whole.get("default_prompt_name")
    if default is not None and default not in prompts:
        known = ", ".join(prompts) or "no prompts"
        raise UserError(f"{folder / _WHOLE}: default_prompt_name: expected one of {known}, found {default!r:.80}")
    return Sentences(pooling, own.get("max_seq_length"), prompts, default, own.get("do_lower_case") is True, part)


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _read_pooling(path: Path) -> str:
    """How it pools, "first" or "mean", by the config.json of that part."""
    if not path.is_file():
        raise UserError(f"{path}: no such file, where {_MODULES} says how the model pools: copy it again")
    said = _read(path)
    modes = [key.removeprefix(_MODE) for key, value in said.items() if key.startswith(_MODE) and value is True]
    if isinstance(said.get("pooling_mode"), str):  # later versions name the one
        modes = [said["pooling_mode"]]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise UserError(
            f"{path}: expected the first token's vector (cls_token) or the mean (mean_tokens), found "
            f"{', '.join(modes) or 'neither'}: move the file away, and set model.pooling in config.json afterwards"
        )
    if said.get("include_prompt") is False:
        raise UserError(f"{path}: include_prompt false: prompts cannot be left out of the mean; set it to true")
    return _MODES[modes[0]]
