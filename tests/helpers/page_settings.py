"""Settings drawn at random for a page, and what Python says of each."""

from __future__ import annotations

import random
from typing import Any

from metacount.errors import SpecError
from metacount.spec import ModelSpec, Workload
from metacount.textbook.count import QUANTITIES, count, run_sizes
from metacount.textbook.proven import own_type, proven, sizes_text
from metacount.textbook.worksheet import RUN, Worksheet


def drawn(sheet: Worksheet, n: int, seed: int = 0) -> list[dict[str, Any]]:
    """`n` settings that Python takes and half as many that it refuses, each with what it says."""
    draw = random.Random(f"{sheet.model.id} {seed}")
    taken: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    for _ in range(200 * n):
        texts = setting(sheet, draw)
        said = python_says(sheet, texts)
        if "problem" not in said and len(taken) < n:
            taken.append({"texts": texts, "said": said})
        elif "problem" in said and len(refused) < n // 2:
            refused.append({"texts": texts, "said": said})
        if len(taken) == n and len(refused) == n // 2:
            return [*taken, *refused]
    raise AssertionError(f"{sheet.model.id}: {len(taken)} settings taken, {len(refused)} refused")


def setting(sheet: Worksheet, draw: random.Random) -> dict[str, str]:
    """Texts of the inputs: some sizes as they are, some others, some of them at their limits."""
    numbers = {size.term.name: size.number for size in sheet.sizes}
    for size in draw.sample(sheet.sizes, draw.randint(0, min(6, len(sheet.sizes)))):
        n = size.number
        near = draw.choice((n + 1, n - 1, 2 * n, 3 * n, n // 2, n // 4))
        wide = draw.choice((1, 2, 3, 5, 7, 12, draw.randint(1, 10**4), size.most, size.most + 1, 0))
        number = draw.choice((near, near, wide))
        # below the least is another structure, of which a page has no form
        numbers[size.term.name] = max(number, size.least if size.term.name != "d_model" else 0)
    dtype = draw.choice(("bf16", "bf16", "fp32", "fp8"))
    return {**{name: str(number) for name, number in numbers.items()}, "dtype": dtype}


def python_says(sheet: Worksheet, texts: dict[str, str]) -> dict[str, Any]:
    """What `count` and the record of proofs say at a setting; the start of the error's text."""
    numbers = {name: int(text) for name, text in texts.items() if name != "dtype"}
    start = {size.term.name: size.number for size in sheet.sizes}
    sizes = {name: number for name, number in numbers.items() if name not in RUN}
    same = all(start[name] == number for name, number in sizes.items())
    try:
        spec = ModelSpec.from_dict({**sheet.model.spec.to_dict(), **sizes})
        lengths = {name: number for name, number in numbers.items() if name in RUN}
        run = Workload(**{**sheet.workload.to_dict(), **lengths, "dtype": texts["dtype"]})
        result = count(spec, run)
    except SpecError as error:
        return {"problem": f"{error.field} {error.rule}: got {error.value}"}
    source = sheet.model.source
    config = source.config if source is not None and same else None
    proof = proven(spec, result, config, own_type=own_type(sheet.model))
    said = {
        side: against
        for side, against in (
            ("transformers", proof and proof.code),
            ("reference", proof and proof.ours),
        )
        if against
    }
    # a model without an encoder has no S_e, whatever a workload says
    small = [
        text
        for text in (proof.small if proof else ())
        if spec.has_encoder or not text.startswith("S_e ")
    ]
    totals = result.to_dict()
    figures: dict[str, Any] = {}
    for quantity, parts in QUANTITIES.items():
        if totals[quantity] is None:
            figures[quantity] = None
            continue
        by_part = parts(spec, run_sizes(spec, run))
        assert sum(by_part.values()) == totals[quantity]
        figures[quantity] = {
            "total": str(totals[quantity]),
            "parts": {part: str(value) for part, value in by_part.items()},
            "said": {
                side: {
                    "name": against.name,
                    "verdict": one.verdict,
                    "text": one.text,
                    "where": list(one.where),
                    "domain": sizes_text(one.where, small),
                }
                for side, against in said.items()
                for one in against.said
                if one.quantity == quantity
            },
        }
    return {"figures": figures, "warnings": list(result.warnings)}


def differences(page: Any, asked: list[dict[str, Any]]) -> list[str]:
    """Where a page says something else than Python; no rounding, no tolerance."""
    found = []
    for one, (texts, said) in zip(page, ((a["texts"], a["said"]) for a in asked), strict=True):
        if "problem" in said:
            # a remedy that is a list of numbers is left out by the page
            if not one.get("problem", "").startswith(said["problem"]):
                found.append(f"{texts}: {one.get('problem')} is not {said['problem']}")
            continue
        if "problem" in one:
            found.append(f"{texts}: refused: {one['problem']}")
            continue
        if one["warnings"] != said["warnings"]:
            found.append(f"{texts}: {one['warnings']} is not {said['warnings']}")
        for quantity, right in said["figures"].items():
            mine = one["figures"][quantity]
            if right is None or mine is None:
                found += [] if mine is right else [f"{texts}: {quantity} {mine} is not {right}"]
                continue
            parts = {part: value for part, value in right["parts"].items() if part in mine["parts"]}
            absent = [
                part
                for part, value in right["parts"].items()
                if part not in mine["parts"] and value != "0"
            ]
            if mine["total"] != right["total"] or mine["parts"] != parts or absent:
                found.append(f"{texts}: {quantity} {mine['total']} is not {right['total']}")
            if mine["said"] != right["said"]:
                found.append(f"{texts}: {quantity} {mine['said']} is not {right['said']}")
    return found
