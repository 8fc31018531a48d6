"""`python -m nystromformer.config` writes config.schema.json, the JSON schema for editors, and attention_parameters.py,
the types of the attentions' parameters for type checkers.
"""

import json

from .load import SCHEMA_FILE, json_schema
from .parameter_types import PARAMETERS_FILE, parameters_module

if __name__ == "__main__":
    SCHEMA_FILE.write_text(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    PARAMETERS_FILE.write_text(parameters_module(), encoding="utf-8")
