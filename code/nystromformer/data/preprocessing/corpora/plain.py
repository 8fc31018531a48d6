"""Telling plain text from other formats, by how a file begins."""

from __future__ import annotations

import json
import re

HEAD_BYTES = 1 << 14
"""How much of a file is looked at."""

_MARKUP = re.compile(rb"\s*(<doc |<\?xml|<!doctype|<html|%PDF-|\{\\rtf)", re.IGNORECASE)
_STRING = r'"(?:[^"\\\n]|\\.)*"'
# an object that begins with a key, or is empty: no prose begins so
_OBJECT = rf"\{{\s*(?:{_STRING}\s*:|\}}\s*(?:[,\]{{\[]|$))"
_SCALAR = rf"(?:{_STRING}|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null)"
# several values, or one that is longer than what is looked at
_VALUES = rf'{_SCALAR}\s*,\s*(?:{_SCALAR}\s*[,\]]|(?<=\n)\s*")|"(?:[^"\\\n]|\\.){{4000,}}$'
# a list of objects, of lists or of values; [1] and [sic] may open a text
_JSON = re.compile(rf"\s*(?:{_OBJECT}|(?:\[\s*)+(?:{_OBJECT}|{_VALUES}))")


def other_format(head: bytes) -> bool:
    """Whether a file that begins so is JSON, JSON lines, XML, HTML, PDF or RTF rather than plain text."""
    if _MARKUP.match(head):
        return True
    text = head.decode(errors="replace")
    return bool(_JSON.match(text)) or _is_json_list(text)


def _is_json_list(text: str) -> bool:
    """Whether a text as a whole is a JSON list or object of any kind, such as one of a single text."""
    if not text.lstrip().startswith(("[", "{")):
        return False
    try:
        return isinstance(json.loads(text), list | dict)
    except (ValueError, RecursionError):
        return False
