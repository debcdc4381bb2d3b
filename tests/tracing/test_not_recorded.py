"""What no proof is recorded of yet: it is named, and nothing calls it proven."""

from __future__ import annotations

from typing import Any

from metacount.catalog import entries, entry
from metacount.resolve import Model, find_any
from metacount.spec import Workload
from metacount.textbook.proof_record import CODE, OURS, read_record, structure
from metacount.textbook.proven import proven

# What `benchmarks/prove.py --stale --save` has not gone through: `count` calls none of it proven.
NOT_YET = """
"""
NOT_YET_OURS = """
"""


def test_what_is_recorded_has_all_of_its_cases_and_the_rest_is_named() -> None:
    from metacount.errors import SpecError
    from metacount.huggingface.config.to_spec import mapped_types
    from metacount.verify.cases import cases
    from metacount.verify.recording import of_type

    recorded = {
        (one["side"], one["name"]): [case["name"] for case in one["cases"]]
        for one in read_record()["records"]
    }
    expected: dict[tuple[str, str], list[str]] = {}
    for name in mapped_types():
        try:
            expected[CODE, name] = [case.name for case in cases(of_type(name))]
        except SpecError:
            continue
    by_key: dict[str, list[Any]] = {}
    for model in entries():
        if model.sizes is not None:
            by_key.setdefault(structure(model.spec()), []).append((model.id, model.spec()))
    for (name, spec), *others in by_key.values():
        expected[OURS, name] = [case.name for case in cases(spec, [s for _, s in others])]
    assert recorded == {one: found for one, found in expected.items() if one in recorded}
    missing = {CODE: set[str](), OURS: set[str]()}
    for side, name in expected.keys() - recorded.keys():
        missing[side].add(name)
    print("not recorded yet:", missing)
    assert missing == {CODE: set(NOT_YET.split()), OURS: set(NOT_YET_OURS.split())}


def called_proven(record: dict[str, Any], types: set[str], ours: set[str]) -> set[tuple[str, str]]:
    """Which of these is called equal to its own code, or to our modules."""
    found = set()
    for name in ours:
        spec = entry(name).spec()
        said = proven(spec, Workload(seq_len=min(64, spec.longest or 64)), record=record)
        if said is not None and said.ours is not None and said.ours.of("equal", "chosen"):
            found.add((OURS, name))
    for name in types:
        model = find_any(f"type:{name}")
        if not isinstance(model, Model):  # its default config makes no spec: it has no formula
            continue
        run = Workload(seq_len=min(64, model.spec.longest or 64))
        said = proven(model.spec, run, {"model_type": name}, record)
        # another type of the same structure may be named
        if said is not None and said.code is not None and said.code.name == name:
            found.add((CODE, name))
    return found


def test_nothing_that_is_not_recorded_is_called_equal_to_its_own_code() -> None:
    record = read_record()
    assert called_proven(record, set(NOT_YET.split()), set(NOT_YET_OURS.split())) == set()
    out = {(CODE, "mamba"), (OURS, "zamba2-1.2b")}
    rest = [one for one in record["records"] if (one["side"], one["name"]) not in out]
    asked = {"mamba"}, {"zamba2-1.2b"}
    assert called_proven({**record, "records": rest}, *asked) == set()
    # another's proof under its name, and one of a structure that has none
    one = next(it for it in rest if (it["side"], it["name"]) == (CODE, "mistral"))
    ours = next(it for it in rest if (it["side"], it["name"]) == (OURS, "qwen3-0.6b"))
    mamba = find_any("type:mamba")
    assert isinstance(mamba, Model)
    planted = [
        {**one, "name": "mamba", "structure": structure(mamba.spec)},
        {**ours, "structure": structure(entry("zamba2-1.2b").spec())},
    ]
    assert called_proven({**record, "records": planted}, *asked) == out
