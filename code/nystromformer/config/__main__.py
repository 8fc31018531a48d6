"""`python -m nystromformer.config` writes config.schema.json, the JSON schema for editors."""

import json

from .load import SCHEMA_FILE, json_schema

if __name__ == "__main__":
    SCHEMA_FILE.write_text(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
