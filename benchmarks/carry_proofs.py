"""Carries proofs over to formulas that were rewritten, where these are shown to be the same.

python benchmarks/carry_proofs.py OLD [--save [FILE]]

OLD is a checkout whose record of proofs holds. For each mapped type of its record the textbook's
formulas are made in both checkouts with letters for the config's fields, case by case: if every
quantity of every role is the same expression, in the same fields and at the same numbers, what
OLD's formulas were shown equal to, these are equal to as well, and its record is taken over with
the fingerprints of today's files. Transformers has no part in it: it must be the same version.
What differs in anything is printed and left to `prove.py`; so are our reference modules.
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
from prove import Record, with_where

from metacount.textbook.proven import CODE, FILE, structure
from metacount.verify.cases import cases, spec_of
from metacount.verify.recording import of_type
from metacount.verify.textbook_forms import textbook_of

HERE = Path(__file__).resolve()


def forms_of(name: str) -> Iterator[dict[str, Any]]:
    """What the textbook says of a type, case by case, with letters for its config's fields."""
    for case in cases(of_type(name)):
        found = textbook_of(case.model, None, case.workload)
        yield {
            "case": case.name,
            "workload": case.workload.to_dict(),
            "run_as": repr(case.run_as),
            "quantities": case.quantities,
            "config": case.model,
            "forms": {q: {r: sympy.sympify(e) for r, e in by_role.items()}
                      for q, by_role in found.forms.items()},
            "fields": {n: sympy.sympify(e) for n, e in found.fields.items()},
            "put_right": found.put_right,
            "numbers": found.numbers,
            "relations": found.relations,
        }  # fmt: skip


def dump(file: Path) -> None:
    """Write what the textbook of this checkout says of each type that its record holds of."""
    from metacount.textbook import fingerprints

    data = json.loads(Path(FILE).read_text("utf-8"))
    found = {}
    for one in data["structures"]:
        for record in one["records"]:
            files = [data["file_names"][i] for i in record["files"]]
            if record["side"] == CODE and fingerprints.changed(files, data["files"]) is None:
                said = with_where(record["cases"], one["conditions"].__getitem__)
                name = record["name"]
                found[name] = {"cases": said, "forms": list(forms_of(name))}
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
        if before["forms"].keys() != after["forms"].keys() - {"state_bytes"}:
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
    for name, theirs in before["found"].items():
        why = difference(theirs["forms"], list(forms_of(name)))
        if why:
            print(f"{name}: not the same: {why}", flush=True)
            continue
        same += 1
        model = of_type(name)
        record.found[CODE, name] = {
            "side": CODE,
            "name": name,
            "structure": structure(spec_of(model)),
            "files": rests_on(model),
            "cases": theirs["cases"],
        }
        if save:
            record.save()
    print(f"{same} of {len(before['found'])} types carried over")
    return 0 if same == len(before["found"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
