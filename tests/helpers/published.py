"""Config.json files as published, and what their models have: a model a line.

Without the labels of classifiers and the lists of layers that are not quantised. Parameters, those
used for one token and the cache of a token in bf16 are of the text part where a model also sees.
`total_from` says where the total is from: hub (`stored` values of the safetensors files, by the
hub's API), catalog (its entry has the source), published (stated in public), hand (arithmetic in
the tests), or transformers (its class on meta).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "huggingface" / "config" / "published.jsonl"
TABLE: dict[str, dict[str, Any]] = {
    line["name"]: line for line in map(json.loads, FILE.read_text("utf-8").splitlines())
}
CONFIGS: dict[str, dict[str, Any]] = {name: line["config"] for name, line in TABLE.items()}
