"""Proofs, structure by structure, that textbook formulas equal the forms read off code.

python benchmarks/prove.py [NAME…] [--save [FILE]] [--stale] [--check] [--jobs N]

What `metacount verify --all-sizes` shows of one model, for every mapped type of transformers (its
code) and every structure of the catalog (our reference modules), in each case that `proof_cases`
has, recorded with its domain and the fingerprints of the files that it rests on; `count` reads the
record. With --save the record is written after every structure, so that a run that was stopped goes
on with --stale, which proves again only what is not in the record or rests on a file that changed.
With --check nothing is written: all is proven again, and what differs from the record is listed.
Exit code 1 when a formula is refuted that the record does not have so, or when --check differs.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
import transformers

from metacount.catalog import entries
from metacount.errors import SpecError
from metacount.huggingface.config.to_spec import mapped_types
from metacount.spec import ModelSpec
from metacount.textbook import fingerprints
from metacount.textbook.proven import CODE, FILE, OURS, all_said, structure
from metacount.verify.recording import of_type, record_of
from metacount.views.code_form import in_fields

MAX_DEPTH, LINE = 6, 100
Task = tuple[str, str]  # side, name


def tasks() -> list[Task]:
    """One for each mapped type that the installed transformers has, one for each structure."""
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    types = [(CODE, name) for name in mapped_types() if name in known]
    return [*types, *((OURS, specs[0][0]) for specs in of_structures().values())]


def of_structures() -> dict[str, list[tuple[str, ModelSpec]]]:
    """The catalog's models of each structure, by name."""
    found: dict[str, list[tuple[str, ModelSpec]]] = {}
    for model in entries():
        if model.sizes is not None:
            spec = model.spec()
            found.setdefault(structure(spec), []).append((model.id, spec))
    return found


def proved(task: Task) -> dict[str, Any]:
    """The record of one task."""
    logging.disable(logging.CRITICAL)
    side, name = task
    if side == CODE:
        try:
            found = record_of(name, of_type(name), (), in_fields)
        except SpecError as error:
            return {"side": side, "name": name, "problem": str(error)}
        return {"side": side, **found}
    models = next(specs for specs in of_structures().values() if specs[0][0] == name)
    (_, spec), *others = models
    return {"side": side, **record_of(name, spec, tuple(s for _, s in others), in_fields)}


class Record:
    """The record as a file, with what is in it; a structure's conditions and the names of files
    stand there once."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.found: dict[Task, dict[str, Any]] = {}
        self.refuted: dict[Task, set[tuple[str, str, str]]] = {}  # by stale ones too
        if file.exists():
            self._read(json.loads(file.read_text("utf-8")))

    def _read(self, data: dict[str, Any]) -> None:
        for one in data["structures"]:
            for record in one["records"]:
                files = [data["file_names"][i] for i in record["files"]]
                task = record["side"], record["name"]
                said = {
                    "side": record["side"],
                    "name": record["name"],
                    "structure": one["structure"],
                    "files": files,
                    "cases": with_where(record["cases"], one["conditions"].__getitem__),
                }
                self.refuted[task] = refuted(said)
                if fingerprints.changed(files, data["files"]) is None:
                    self.found[task] = said

    def save(self) -> None:
        """Write all; a run that is stopped meanwhile leaves the old file."""
        made = self._file.with_suffix(".new")
        made.write_text(as_text(list(self.found.values())), "utf-8")
        os.replace(made, self._file)


def with_where(cases: list[dict[str, Any]], said: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """The cases with other words for each condition of their domains."""
    return [
        {
            "name": case["name"],
            "quantities": {
                quantity: {
                    key: [said(one) for one in value] if key == "where" else value
                    for key, value in found.items()
                }
                for quantity, found in case["quantities"].items()
            },
        }
        for case in cases
    ]


def as_text(records: list[dict[str, Any]]) -> str:
    """The record as it is stored: for each structure its conditions, and what was shown of it."""
    names: dict[str, int] = {}
    stored: dict[str, dict[str, Any]] = {}
    for one in sorted(records, key=lambda r: (r["side"], r["name"])):
        if "cases" not in one:
            continue
        key = one["structure"]
        of_one = stored.setdefault(key, {"structure": key, "conditions": {}, "records": []})
        conditions: dict[tuple[str, str], int] = of_one["conditions"]
        files = [names.setdefault(name, len(names)) for name in one["files"]]
        cases = with_where(
            one["cases"], lambda c, known=conditions: known.setdefault(tuple(c), len(known))
        )
        of_one["records"].append(
            {"side": one["side"], "name": one["name"], "files": files, "cases": cases}
        )
    data = {
        "torch": torch.__version__.partition("+")[0],
        "transformers": transformers.__version__,
        "file_names": list(names),
        "files": {name: fingerprints.fingerprint(name) for name in sorted(names)},
        "structures": [
            {**of_one, "conditions": [list(pair) for pair in of_one["conditions"]]}
            for of_one in stored.values()
        ],
    }
    return "\n".join(_lines(data, 0)) + "\n"


def _lines(value: Any, depth: int) -> list[str]:
    """JSON with a line for each condition, file and case."""
    whole = json.dumps(value, ensure_ascii=False)
    deep = isinstance(value, list | dict) and ("quantities" not in value if depth else True)
    if not deep or depth == MAX_DEPTH or len(whole) <= LINE:
        return [whole]
    pairs = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    lines = []
    for name, item in pairs:
        first, *rest = _lines(item, depth + 1)
        lines += [f"{'' if name is None else json.dumps(name) + ': '}{first}", *rest]
        lines[-1] += ","
    lines[-1] = lines[-1].removesuffix(",")
    left, right = "{}" if isinstance(value, dict) else "[]"
    return [left, *(" " + line for line in lines), right]


def run(todo: list[Task], jobs: int) -> Iterator[dict[str, Any]]:
    """Prove one task after the other, `jobs` at once; a line on stderr for each."""
    begun = time.monotonic()
    with ProcessPoolExecutor(jobs) as pool:
        running = {pool.submit(proved, task): task for task in todo}
        for i, done in enumerate(as_completed(running), start=1):
            side, name = running[done]
            try:
                record = done.result()
            except Exception as error:  # the others go on; this one fails the run
                text = f"{type(error).__name__}: {' '.join(str(error).split())}"
                record = {"side": side, "name": name, "failed": text}
            minutes = (time.monotonic() - begun) / 60
            left = minutes / i * (len(todo) - i)
            print(
                f"[{i}/{len(todo)}, {minutes:.0f} min, about {left:.0f} left] {_line(record)}",
                file=sys.stderr,
                flush=True,
            )
            yield record


def _line(record: dict[str, Any]) -> str:
    if "cases" not in record:
        return f"{record['name']}: {record.get('problem') or 'FAILED: ' + record['failed']}"
    said = [found for *_, found in all_said({"records": [record]})]
    parts = {
        "equal": sum(found.keys() == {"where"} for found in said),
        "equal for the experts chosen": sum("more" in found for found in said),
        "refuted": sum("differs" in found for found in said),
        "not shown": sum("problem" in found for found in said),
    }
    counts = ", ".join(f"{n} {what}" for what, n in parts.items() if n)
    return f"{record['name']} ({record['side']}): {len(record['cases'])} cases, {counts}"


def refuted(record: dict[str, Any]) -> set[tuple[str, str, str]]:
    """(name, quantity, what is left) wherever a formula is refuted."""
    return {
        (one["name"], quantity, str(found["differs"]))
        for one, _, quantity, found in all_said(
            {"records": [record]} if "cases" in record else {"records": []}
        )
        if "differs" in found
    }


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two records say the same; the order of conditions is nothing."""

    def plain(one: dict[str, Any]) -> Any:
        return {
            (case["name"], quantity): {
                **found,
                "where": sorted(map(tuple, found.get("where", ()))),
            }
            for _, case, quantity, found in all_said({"records": [one]})
        }

    return a["structure"] == b["structure"] and plain(a) == plain(b)


def sentence(records: list[dict[str, Any]]) -> str:
    """What the README says of the record."""
    equal: dict[str, set[tuple[str, str]]] = {CODE: set(), OURS: set()}
    for one, _, quantity, found in all_said({"records": records}):
        if found.keys() == {"where"}:
            equal[one["side"]].add((one["name"], quantity))
    types, structures = (len({name for name, _ in equal[side]}) for side in (CODE, OURS))
    return (
        f"{len(equal[CODE])} formulas of {types} types equal transformers' code, "
        f"{len(equal[OURS])} of {structures} structures our modules"
    )


def main() -> int:
    """Prove, print, save or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help="types, or models of the catalog")
    parser.add_argument("--save", type=Path, nargs="?", const=Path(FILE), help="write the record")
    parser.add_argument("--stale", action="store_true", help="only what is missing or changed")
    parser.add_argument("--check", action="store_true", help="compare all with the record")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    record = Record(args.save or Path(FILE))
    known, known_refuted = dict(record.found), dict(record.refuted)
    every = tasks()
    todo = [task for task in every if not args.names or task[1] in args.names]
    if args.stale:
        todo = [task for task in todo if task not in known]
    if args.save:
        record.found = {task: one for task, one in known.items() if task in every}
    wrong, differ, failed = 0, [], []
    for one in run(todo, args.jobs):
        task = one["side"], one["name"]
        wrong += len(refuted(one) - known_refuted.get(task, set()))
        if args.check and "cases" in one and (task not in known or not same(one, known[task])):
            differ.append(one["name"])
        if "cases" in one:
            record.found[task] = one
        if "failed" in one:
            failed.append(one["name"])
        if args.save:
            record.save()
    if args.save and args.stale and not todo:
        record.save()
    if differ:
        print("not what the record says: " + ", ".join(differ))
    if args.save:
        print(sentence(list(record.found.values())))
    if failed:
        print("failed: " + ", ".join(failed))
    print(f"{len(todo) - len(failed)} structures tried, {wrong} formulas newly refuted")
    return 1 if wrong or differ or failed else 0


if __name__ == "__main__":
    sys.exit(main())
