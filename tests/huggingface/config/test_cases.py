"""A line a case: a config, and the fields it becomes, or the words that refuse it.

`of`: a published config, a small one of a type ("small TYPE"), or a type's default; `set`: the keys
that are changed. `spec`: fields; `same`: other keys that mean the same, `as`: another config;
`note`, `differs`: what is said; `left`: what no spec expresses; `refused`: what is no model. The
words are patterns.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import one_line
from helpers.published import CONFIGS
from helpers.small_configs import SMALL

from metacount.errors import SpecError
from metacount.huggingface.config.to_spec import Unmapped, spec_from_config

LINES = Path(__file__).with_name("cases.jsonl").read_text("utf-8").splitlines()
CASES: list[dict[str, Any]] = [json.loads(line) for line in LINES]


def config_of(case: dict[str, Any]) -> dict[str, Any]:
    of = case["of"].removeprefix("small ")
    small = {"model_type": of, **(SMALL[of] if of != case["of"] else {})}
    return {**CONFIGS.get(case["of"], small), **case.get("set", {})}


@pytest.mark.parametrize("case", CASES, ids=[f"{c['of']} {c.get('set', '')}"[:60] for c in CASES])
def test_what_a_config_means(case: dict[str, Any]) -> None:
    expected = {*case} - {"of", "set"}
    assert expected <= {"spec", "same", "note", "differs", "left", "refused", "as"} and expected
    config = config_of(case)
    if words := case.get("left") or case.get("refused"):
        with pytest.raises(SpecError) as caught:
            spec_from_config(config)
        assert re.search(words, one_line(caught.value)), str(caught.value)
        assert isinstance(caught.value, Unmapped) == ("left" in case)
        return
    found = spec_from_config(config)
    for field, value in case.get("spec", {}).items():
        assert getattr(found.spec, field) == value, field
    if "same" in case:
        assert found.spec == spec_from_config({**config_of({**case, "set": case["same"]})}).spec
    if "as" in case:
        assert found.spec == spec_from_config(case["as"]).spec
    for name, lines in (("note", found.notes), ("differs", found.differs)):
        assert name not in case or any(re.search(case[name], line) for line in lines)
