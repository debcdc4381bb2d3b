"""The parts about far positions: each rule triggers, says what to do; all come back from data."""

from __future__ import annotations

import ast
import inspect
import json
import traceback
from typing import Any

import pytest
from helpers.small_specs import DENSE, MLA, MOE, refusal

from metacount.errors import InputError, SpecError
from metacount.settings import parse_settings
from metacount.spec import ModelSpec, rope_scaling
from metacount.spec.flat import RECORDS
from metacount.spec.rope_scaling import QueryGrowth, RopeScaling
from metacount.views.fields import field_rows

YARN = {
    "kind": "yarn",
    "factor": 4.0,
    "n_trained": 32,
    "beta_fast": 8.0,
    "truncate": False,
    "attention_factor": 1.5,
}
LONG = {
    "kind": "longrope",
    "n_trained": 32,
    "short_factors": [1.0, 1.5, 2.0, 2.5, 3.0],
    "long_factors": [2.0, 3.0, 4.0, 5.0, 6.0],
}
LLAMA3 = {
    "kind": "llama3",
    "factor": 8.0,
    "n_trained": 32,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
GROWTH: dict[str, Any] = {"weight": 0.1, "step": 16.0, "shift": 1, "nope_only": True}


# What each kind of scaling is nothing without, as the papers and transformers have it.
NEEDED = {
    "linear": {"factor"},
    "dynamic": {"factor", "n_trained"},
    "yarn": {"factor", "n_trained"},
    "llama3": {"factor", "n_trained", "low_freq_factor", "high_freq_factor"},
    "longrope": {"n_trained", "short_factors", "long_factors"},
}


def scaling(**values: Any) -> dict[str, Any]:
    return {"rope_scaling": values}


RULES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (DENSE, {"rope_scaling": 4.0}, "rope_scaling must be an object: got 4.0; leave rope_scaling o"),
    (DENSE, scaling(), "rope_scaling.kind is missing: got None; give kind"),
    (DENSE, scaling(kind="ntk"), "rope_scaling.kind is unknown: got 'ntk'; choose one of linear, "),
    (DENSE, scaling(kind="linear"), "rope_scaling.factor is needed by linear: got None; give fac"),
    (DENSE, scaling(kind="linear", factr=2.0), "rope_scaling.factr is not one of its fields: got"),
    (
        DENSE,
        scaling(kind="linear", factor=2.0, n_trained=7),
        "rope_scaling.n_trained has no meaning with linear: got 7; leave it out",
    ),
    (DENSE, scaling(kind="linear", factor="2"), "rope_scaling.factor must be a positive number: g"),
    (DENSE, scaling(kind="linear", factor=0.5), "rope_scaling.factor must be at least 1: got 0.5"),
    (DENSE, scaling(**{**LLAMA3, "n_trained": 1.5}), "rope_scaling.n_trained must be a whole num"),
    (
        DENSE,
        scaling(**{**LLAMA3, "high_freq_factor": 0.5}),
        "rope_scaling.high_freq_factor must be at least low_freq_factor = 1.0: got 0.5; raise it",
    ),
    (DENSE, scaling(**{**YARN, "truncate": 1}), "rope_scaling.truncate must be true or false: got"),
    (
        DENSE,
        scaling(**{**LONG, "long_factors": [1.0]}),
        "rope_scaling needs one factor for each of the 5 pairs: got 1; give as many",
    ),
    (
        DENSE,
        scaling(**{**LONG, "long_factors": [1.0, 2.0, "3", 4.0, 5.0]}),
        "rope_scaling.long_factors must be a positive number: got '3'; choose one below 1e12",
    ),
    (
        {**DENSE, "rotary_dim": 2},
        scaling(kind="dynamic", factor=2.0, n_trained=32),
        "rope_scaling dynamic needs more than 2 rotated values: got 2; leave rope_scaling out",
    ),
    (
        {**DENSE, "window": 3, "window_pattern": "LG", "rope_theta_windowed": 1e4},
        {"rope_scaling_windowed": {**LONG, "long_factors": [2.0]}},
        "rope_scaling_windowed needs one factor for each of the 5 pairs: got 1; give as many",
    ),
    (
        DENSE,
        {"rope_scaling_windowed": YARN},
        "rope_scaling_windowed has no meaning without rope_theta_windowed: got 'yarn'; give both",
    ),
    (DENSE, {"query_growth": {"weight": 0.1}}, "query_growth.step is missing: got None; give step"),
    (DENSE, {"query_growth": {**GROWTH, "weight": 0}}, "query_growth.weight must be a positive nu"),
    (DENSE, {"query_growth": {**GROWTH, "shift": 2}}, "query_growth.shift must be at most 1: got"),
    (DENSE, {"query_growth": {**GROWTH, "nope_only": 1}}, "query_growth.nope_only must be true or"),
    (MLA, {"query_growth": GROWTH}, "query_growth has no meaning with attention mla: got"),
    (
        {**DENSE, "position": "none"},
        {"rope_scaling": YARN},
        "rope_scaling has no meaning with position none: got",
    ),
]


@pytest.mark.parametrize(("base", "changes", "message"), RULES)
def test_a_rule(base: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    assert str(refusal(base, changes)).startswith(message)


def test_a_field_takes_nothing_but_its_own_part() -> None:
    with pytest.raises(SpecError, match="query_growth"):
        ModelSpec(**{**DENSE, "query_growth": RopeScaling(kind="linear", factor=2.0)})


def test_no_rule_of_the_file_is_left_untried() -> None:
    seen = set()
    cases = [(ModelSpec.from_dict, {**base, **changes}) for base, changes, _ in RULES]
    wrong = {**DENSE, "query_growth": RopeScaling(kind="linear", factor=2.0)}
    for build, values in [*cases, (lambda data: ModelSpec(**data), wrong)]:
        with pytest.raises(SpecError, match="; ") as caught:
            build(values)
        frames = traceback.extract_tb(caught.tb)
        seen |= {frame.lineno for frame in frames if frame.filename == rope_scaling.__file__}
    source = ast.parse(inspect.getsource(rope_scaling))
    raised = [node for node in ast.walk(source) if isinstance(node, ast.Raise)]
    assert raised
    assert [
        node.lineno
        for node in raised
        if not seen & set(range(node.lineno, (node.end_lineno or 0) + 1))
    ] == []


@pytest.mark.parametrize("part", [YARN, LONG, LLAMA3])
@pytest.mark.parametrize("base", [DENSE, MOE])
def test_a_part_comes_back_from_plain_data(base: dict[str, Any], part: dict[str, Any]) -> None:
    spec = ModelSpec.from_dict({**base, "rope_scaling": part, "query_growth": GROWTH})
    plain = json.loads(json.dumps(spec.to_dict()))
    assert plain["rope_scaling"] == part
    again = ModelSpec.from_dict(plain)
    assert again == spec
    assert hash(again) == hash(spec)
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in part.items()}
    assert again.rope_scaling == RopeScaling(**given)
    assert spec.replace(n_layers=7).query_growth == QueryGrowth(**GROWTH)
    assert spec.substituted(n_layers="N").rope_scaling == spec.rope_scaling
    assert spec.replace(rope_scaling=None).rope_scaling is None


def test_a_part_is_listed_and_not_set_on_the_command_line() -> None:
    takes = {row["field"]: row["takes"] for row in field_rows()}
    assert {takes[name] for name in RECORDS} == {"object, or none"}
    assert parse_settings(["rope_scaling=none"]) == {"rope_scaling": None}
    with pytest.raises(InputError, match="--set rope_scaling"):
        parse_settings(["rope_scaling=yarn"])


@pytest.mark.parametrize("kind", NEEDED)
def test_what_a_scaling_needs(kind: str) -> None:
    every: dict[str, Any] = {**YARN, **LLAMA3, **LONG}
    needed = {name: every[name] for name in sorted(NEEDED[kind])}
    assert ModelSpec.from_dict({**DENSE, **scaling(kind=kind, **needed)})
    for name in needed:
        rest = {key: value for key, value in needed.items() if key != name}
        with pytest.raises(SpecError, match=f"^rope_scaling.{name} is needed by {kind}: "):
            ModelSpec.from_dict({**DENSE, **scaling(kind=kind, **rest)})
