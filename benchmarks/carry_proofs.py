"""Carries proofs over to formulas that were rewritten, where these are shown to be the same.

python benchmarks/carry_proofs.py OLD [--save [FILE]]

OLD is a checkout whose record of proofs holds. For each mapped type of its record the textbook's
formulas are made in both checkouts with letters for the config's fields, case by case: if every
quantity of every role is the same expression, in the same fields and at the same numbers, what
OLD's formulas were shown equal to, these are equal to as well, and its record is taken over with
the fingerprints of today's files. Transformers has no part in it: it must be the same version.
Of our reference modules the same holds where no file of modules/ that it rests on has other code.
What differs in anything is printed and left to `prove.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sympy
import transformers
from prove import Record, of_structures, with_where

from metacount.spec import ModelSpec
from metacount.textbook import fingerprints
from metacount.textbook.proven import CODE, FILE, structure
from metacount.tracing.forms import Tracer
from metacount.verify.cases import cases, spec_of
from metacount.verify.recording import of_type
from metacount.verify.textbook_forms import textbook_of

HERE = Path(__file__).resolve()


def forms_of(name: str, side: str = CODE) -> Iterator[dict[str, Any]]:
    """What the textbook says of a type or a structure, case by case, with letters for sizes."""
    model, others = (of_type(name), ()) if side == CODE else of_name(name)
    for case in cases(model, others):
        letters = None
        if side != CODE:
            source = Tracer(case.model, case.workload, run_as=case.run_as).source
            letters = {**source.sizes(), **source.layer_fields({})}
        found = textbook_of(case.model, letters, case.workload)
        yield {
            "case": case.name,
            "workload": case.workload.to_dict(),
            "run_as": repr(case.run_as),
            "quantities": case.quantities,
            "model": case.model if side == CODE else case.model.to_dict(),
            "forms": {
                q: {r: sympy.sympify(e) for r, e in by_role.items()}
                for q, by_role in found.forms.items()
            },
            "fields": {n: sympy.sympify(e) for n, e in found.fields.items()},
            "put_right": found.put_right,
            "numbers": found.numbers,
            "relations": found.relations,
        }


def of_name(name: str) -> tuple[ModelSpec, tuple[ModelSpec, ...]]:
    """The spec of a structure that is recorded under a model's name, and the others of it."""
    models = next(specs for specs in of_structures().values() if specs[0][0] == name)
    return models[0][1], tuple(spec for _, spec in models[1:])


def dump(file: Path) -> None:
    """Write what the textbook of this checkout says of each type that its record holds of."""
    data = json.loads(Path(FILE).read_text("utf-8"))
    found = {}
    for one in data["structures"]:
        for record in one["records"]:
            files = [data["file_names"][i] for i in record["files"]]
            if fingerprints.changed(files, data["files"]) is None:
                said = with_where(record["cases"], one["conditions"].__getitem__)
                side, name = record["side"], record["name"]
                modules = {
                    file: data["files"][file] for file in files if file.startswith("modules/")
                }
                found[side, name] = {
                    "cases": said,
                    "modules": modules,
                    "forms": list(forms_of(name, side)),
                }
    with file.open("wb") as opened:
        pickle.dump({"transformers": data["transformers"], "found": found}, opened)


def difference(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> str:
    """What differs between the cases of two checkouts; empty where nothing does."""
    if [case["case"] for case in old] != [case["case"] for case in new]:
        return "other cases"
    for before, after in zip(old, new, strict=True):
        for key in before:
            if key != "forms" and before[key] != after[key]:
                return f"{before['case']}: {key}"
        if not before["forms"].keys() <= after["forms"].keys():
            return f"{before['case']}: other quantities"
        for quantity, by_role in before["forms"].items():
            other = after["forms"][quantity]
            for role in by_role.keys() | other.keys():
                left = by_role.get(role, 0) - other.get(role, 0)
                if sympy.expand(left) != 0:
                    return f"{before['case']}: {quantity}, {role}: {sympy.factor(left)}"
    return ""


def main() -> int:
    """Compare and carry; returns the exit code."""
    words = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=words)
    parser.add_argument("old", metavar="OLD", type=Path)
    parser.add_argument("--save", type=Path, nargs="?", const=Path(FILE), help="write the record")
    parser.add_argument("--dump", type=Path, help=argparse.SUPPRESS)  # what runs in OLD
    args = parser.parse_args()
    if args.dump:
        dump(args.dump)
        return 0
    return carry(args.old.resolve(), args.save)


def carry(old: Path, save: Path | None) -> int:
    """Compare every type of OLD's record with today's formulas; save those that are the same."""
    file = old / "carried.pickle"
    command = [sys.executable, str(HERE), str(old), "--dump", str(file)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(old)}, cwd=old)
    before = pickle.loads(file.read_bytes())  # our own, written above
    file.unlink()
    if before["transformers"] != transformers.__version__:
        raise SystemExit(f"OLD proved transformers {before['transformers']}, not this one")
    from metacount.verify.recording import rests_on  # OLD may not have it

    record, same = Record(save or Path(FILE)), 0
    for (side, name), theirs in before["found"].items():
        why = difference(theirs["forms"], list(forms_of(name, side)))
        changed = fingerprints.changed(theirs["modules"], theirs["modules"])
        if side != CODE and changed is not None:
            why = f"{changed} is not what was run"
        if why:
            print(f"{name}: not the same: {why}", flush=True)
            continue
        same += 1
        model = of_type(name) if side == CODE else of_name(name)[0]
        record.found[side, name] = {
            "side": side,
            "name": name,
            "structure": structure(spec_of(model)),
            "files": rests_on(model),
            "cases": theirs["cases"],
        }
        if save:
            record.save()
    print(f"{same} of {len(before['found'])} types and structures carried over")
    return 0 if same == len(before["found"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
