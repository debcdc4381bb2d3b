"""Proofs, structure by structure, that textbook formulas equal the forms read off code.

python benchmarks/prove.py [NAME…] [--save [FILE]] [--stale] [--check] [--jobs N]

What `metacount verify --all-sizes` shows of one model, for every mapped type of transformers (its
code) and every structure of the catalog (our reference modules), in each case that
`metacount.verify.cases` has, recorded with its domain and digests of both expressions; `count`
reads the record. With --save the record is written after every structure, so that a run that was
stopped goes on with --stale, which proves again only what is not in the record, what another
textbook formula was compared in, and what has no digest of the code. With --check nothing is
written: all is proven again, and what differs from the record is listed. Exit code 1 when a formula
is refuted that the record does not have so, or when --check differs.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sympy
import torch
import transformers

from metacount.catalog import entries, entry
from metacount.cli.expressions import in_fields
from metacount.errors import SpecError
from metacount.huggingface.config.to_spec import mapped_types
from metacount.spec import ModelSpec, Workload
from metacount.textbook.closed_form import LAYERS, named_layers
from metacount.textbook.proven import CODE, FILE, OURS, structure, value
from metacount.tracing.forms import Tracer
from metacount.tracing.sources import As
from metacount.tracing.symbols import symbol
from metacount.verify.cases import Case, cases, cases_at_a_limit, cases_at_own_layers, spec_of
from metacount.verify.for_all_sizes import (
    Proof,
    as_test,
    conditions_of,
    of_type,
    prove,
    textbook_beside,
    whole_text,
)
from metacount.verify.textbook_forms import sizes_of, spec_forms

if TYPE_CHECKING:
    from metacount.files import Json

MAX_DEPTH, LINE = 6, 100
LONGEST = 240.0  # seconds that a forward with symbols may take: what is recorded is done once
LARGEST_SIZES = (7, 12, 40, 200, 1000, 10_000)  # of each setting at which a digest is taken
DEFAULT = "default"
# side; the type, or the first model of a structure; whose config, where it is not one that runs: a
# model of the catalog's, or the type's default, of another structure
Task = tuple[str, str, str]


def tasks() -> list[Task]:
    """Those of each mapped type that the installed transformers has, one for each structure."""
    return [*_of_types(), *((OURS, specs[0][0], "") for specs in of_structures().values())]


@cache
def _of_types() -> dict[Task, tuple[Json, str]]:
    """The configs of each type that are of structures of their own, with these."""
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    found: dict[Task, tuple[Json, str]] = {}
    for name in (name for name in mapped_types() if name in known):
        of_name = [("", of_type(name)), (DEFAULT, {"model_type": name})]
        of_name += [
            (model.id, {**of_type(name), **model.type_config})
            for model in entries()
            if model.model_type == name and model.sizes is not None and model.type_config
        ]
        seen = set()
        for whose, config in of_name:
            try:
                key = structure(spec_of(config))
            except SpecError:
                continue
            right = whose in ("", DEFAULT) or key == structure(entry(whose).spec())
            if right and key not in seen:
                found[CODE, name, whose] = config, key
            seen.add(key)
    return found


@cache
def of_structures() -> dict[str, list[tuple[str, ModelSpec]]]:
    """The catalog's models of each structure, by name."""
    found: dict[str, list[tuple[str, ModelSpec]]] = {}
    for model in entries():
        if model.sizes is not None:
            spec = model.spec()
            found.setdefault(structure(spec), []).append((model.id, spec))
    return found


def model_of(task: Task) -> tuple[Json | ModelSpec, tuple[ModelSpec, ...]]:
    """The config of a type, or the spec of a structure, and other specs of the same one."""
    side, name, _ = task
    if side == CODE:
        config, key = _of_types()[task]
        return config, tuple(spec for _, spec in of_structures().get(key, ()))
    models = next(specs for specs in of_structures().values() if specs[0][0] == name)
    return models[0][1], tuple(spec for _, spec in models[1:])


def proved(task: Task) -> Json:
    """The record of one task."""
    logging.disable(logging.CRITICAL)
    side, name, whose = task
    return {"side": side, "name": name, "of": whose, **record_of(*model_of(task), in_fields)}


class Record:
    """The record as a file, with what is in it; a structure's conditions stand there once."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.found: dict[Task, Json] = {}
        if file.exists():
            for of_one in json.loads(file.read_text("utf-8"))["structures"]:
                for one in of_one["records"]:
                    cases = with_where(one["cases"], of_one["conditions"].__getitem__)
                    shared = {name: of_one[name] for name in ("structure", "layers", "forms")}
                    self.found[task_of(one)] = {**one, **shared, "cases": cases}

    def save(self) -> None:
        """Write all; a run that is stopped meanwhile leaves the old file."""
        made = self._file.with_suffix(".new")
        made.write_text(as_text(list(self.found.values())), "utf-8")
        os.replace(made, self._file)


def task_of(one: Json) -> Task:
    """What a record is of."""
    return one["side"], one["name"], one["of"]


def is_stale(task: Task, one: Json) -> bool:
    """Whether a form of the code has no digest, or a formula is not the one that was compared."""
    logging.disable(logging.CRITICAL)
    model, others = model_of(task)
    shown = [found for *_, found in said_of(one) if "problem" not in found]
    if any(found["code"] is None for found in shown):
        return True
    if one["structure"] != structure(spec_of(model)):
        return True
    forms, were = form_values(*closed_forms(spec_of(model))), form_values(*forms_of(one))
    recorded = {case["name"] for case in one["cases"]}
    every = (*cases(model, others), *further_cases(model, others, recorded))
    today = {case.name: textbook_digests(case) for case in every if case.name in recorded}
    return not {case.name for case in cases(model, others)} <= recorded or any(
        forms[quantity] != were[quantity] or today[case["name"]].get(quantity) != found["textbook"]
        for case, quantity, found in said_of(one)
        if "problem" not in found
    )


def said_of(one: Json) -> Iterator[tuple[Json, str, Json]]:
    """(case, quantity, what is recorded of it), one after the other."""
    for case in one.get("cases", ()):
        for quantity, found in case["quantities"].items():
            yield case, quantity, found


def with_where(cases: list[Json], said: Callable[[Any], Any]) -> list[Json]:
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


def as_text(records: list[Json]) -> str:
    """The record as it is stored: for each structure its forms, its conditions, its records."""
    stored: dict[str, Json] = {}
    known: dict[str, dict[str, int]] = {}
    for one in sorted(records, key=task_of):
        key = one["structure"]
        if key not in stored:
            start = {"structure": key, "digest": "", "layers": one["layers"], "forms": {}}
            stored[key] = {**start, "conditions": [], "records": []}
            known[key] = {}
        of_one = stored[key]
        of_one["forms"] |= {quantity: one["forms"][quantity] for _, quantity, _ in said_of(one)}

        def place(condition: Any, key: str = key) -> int:
            at = known[key].setdefault(json.dumps(condition), len(known[key]))
            if at == len(stored[key]["conditions"]):
                stored[key]["conditions"].append(condition)
            return at

        cases = with_where(one["cases"], place)
        of_one["records"].append({n: one[n] for n in ("side", "name", "of")} | {"cases": cases})
    for of_one in stored.values():
        of_one["digest"] = digest_of(of_one)
    data = {
        "torch": torch.__version__.partition("+")[0],
        "transformers": transformers.__version__,
        "structures": list(stored.values()),
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


def run(todo: list[Task], jobs: int) -> Iterator[Json]:
    """Prove one task after the other, `jobs` at once; a line on stderr for each."""
    begun = time.monotonic()
    with ProcessPoolExecutor(jobs) as pool:
        running = {pool.submit(proved, task): task for task in todo}
        for i, done in enumerate(as_completed(running), start=1):
            side, name, whose = running[done]
            try:
                record = done.result()
            except Exception as error:  # the others go on; this one fails the run
                text = f"{type(error).__name__}: {' '.join(str(error).split())}"
                record = {"side": side, "name": name, "of": whose, "failed": text}
            minutes = (time.monotonic() - begun) / 60
            left = minutes / i * (len(todo) - i)
            print(
                f"[{i}/{len(todo)}, {minutes:.0f} min, about {left:.0f} left] {_line(record)}",
                file=sys.stderr,
                flush=True,
            )
            yield record


def _line(record: Json) -> str:
    if "failed" in record:
        return f"{record['name']} {record['of']}: FAILED: {record['failed']}"
    said = [found for *_, found in said_of(record)]
    parts = {
        "equal": sum(map(is_equal, said)),
        "equal for the experts chosen": sum("more" in found for found in said),
        "refuted": sum("differs" in found for found in said),
        "not shown": sum("problem" in found for found in said),
    }
    counts = ", ".join(f"{n} {what}" for what, n in parts.items() if n)
    name = " ".join(filter(None, (record["name"], record["of"])))
    return f"{name} ({record['side']}): {len(record['cases'])} cases, {counts}"


def is_equal(found: Json) -> bool:
    """Whether a formula is the code's, and the code does no more."""
    return found.keys() == {"where", "textbook", "code"}


def refuted(record: Json) -> set[tuple[str, str]]:
    """(quantity, what is left) wherever a formula is refuted."""
    return {(q, str(found["differs"])) for _, q, found in said_of(record) if "differs" in found}


def same(a: Json, b: Json) -> bool:
    """Whether two records say the same; the order of conditions is nothing, and no digest of the
    code is any.
    """

    def plain(one: Json, other: Json) -> Json:
        codes = {(case["name"], q): found.get("code") for case, q, found in said_of(other)}
        return {
            (case["name"], q): {
                **found,
                "where": sorted(map(str, found.get("where", ()))),
                "code": codes.get((case["name"], q)) and found.get("code"),
            }
            for case, q, found in said_of(one)
        }

    forms, others = form_values(*forms_of(a)), form_values(*forms_of(b))
    return (
        a["structure"] == b["structure"]
        and all(forms[q] == others.get(q) for _, q, _ in said_of(a))
        and plain(a, b) == plain(b, a)
    )


def forms_of(one: Json) -> tuple[dict[str, str], dict[str, str]]:
    """The numbers of layers of a kind and the forms of a record."""
    return one["layers"], one["forms"]


def sentence(records: list[Json]) -> str:
    """What the record says is equal, in a sentence."""
    equal: dict[str, set[tuple[str, str]]] = {CODE: set(), OURS: set()}
    for one in records:
        equal[one["side"]] |= {(one["name"], q) for _, q, found in said_of(one) if is_equal(found)}
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
    known = dict(record.found)
    every = tasks()
    todo = [task for task in every if not args.names or {*task[1:]} & {*args.names}]
    if args.stale:
        todo = [task for task in todo if task not in known or is_stale(task, known[task])]
    if args.save:
        record.found = {task: one for task, one in known.items() if task in every}
    wrong, differ, failed = 0, [], []
    for one in run(todo, args.jobs):
        task = task_of(one)
        wrong += len(refuted(one) - refuted(known.get(task, {})))
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


# ---- what is recorded of a structure


def closed_forms(spec: ModelSpec) -> tuple[dict[str, str], dict[str, str]]:
    """Write the textbook's quantities of a structure, each in total, in all sizes of its spec and
    B, S, T, S_e; and before them the numbers of layers of a kind, which they name.
    """
    letters = {name: symbol(name) for name in sizes_of(spec)}
    names = {term.letter: symbol(term.name) for term in LAYERS}
    kinds = {
        expr: names[letter.name]
        for expr, letter in named_layers(spec, symbol("n_layers")).items()
        if len(str(expr)) > len(names[letter.name].name)
    }
    run = {"bytes_per_value": symbol("bytes_per_value")}
    if spec.kind == "prefix-decoder":
        run["prefix_len"] = symbol("prefix_len")
    forms = {}
    for quantity, by_role in spec_forms(spec, letters, Workload(), run=run).items():
        total = sympy.Add(*map(sympy.sympify, by_role.values()))
        named = total.subs(kinds)
        texts = [whole_text(form) for form in (named, sympy.factor_terms(named))]
        forms[quantity] = min(texts, key=len)
    used = " ".join(forms.values())
    layers = {s.name: whole_text(expr) for expr, s in kinds.items() if s.name in used}
    return layers, forms


def form_values(layers: dict[str, str], forms: dict[str, str]) -> dict[str, list[int]]:
    """Evaluate forms at fixed sizes: what is equal has equal values, however written."""
    found: dict[str, list[int]] = {quantity: [] for quantity in forms}
    for largest in LARGEST_SIZES:
        words = set(re.findall(r"[A-Za-z_]\w*", " ".join([*layers.values(), *forms.values()])))
        at = {name: _size(name, largest) for name in words - layers.keys()}
        for name, text in layers.items():
            at[name] = value(text, at)
        for quantity, text in forms.items():
            found[quantity].append(value(text, at))
    return found


def digest(expr: sympy.Expr) -> str:
    """Write a digest of an expression: of its values at fixed sizes, as `form_values` has them.

    >>> d, h = sympy.symbols("d h", integer=True, positive=True)
    >>> digest(d * (d + h)) == digest(d**2 + d * h) != digest(d**2 + d * h + 1)
    True
    """
    values = []
    for largest in LARGEST_SIZES:
        at = {s: sympy.Integer(_size(s.name, largest)) for s in expr.free_symbols}
        values.append(str(expr.xreplace(at).doit()))
    return _hash(" ".join(values))


def _size(name: str, largest: int) -> int:
    """Draw a size from 1 to `largest` by its name."""
    return int(_hash(f"{name} {largest}"), 16) % largest + 1


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=4).hexdigest()


def textbook_digests(case: Case) -> dict[str, str]:
    """Write the digest of each formula in the letters of a case, without a look at the code."""
    tracer = Tracer(case.model, case.workload, run_as=case.run_as)
    textbook = textbook_beside(tracer, case.model, case.workload)
    names = (name for name in case.quantities if name in textbook.forms)
    return {name: digest(textbook.total(name)) for name in names}


def digest_of(structure: Json) -> str:
    """Write a digest of all that is recorded of a structure, but for itself."""
    kept = {name: found for name, found in structure.items() if name != "digest"}
    return _hash(json.dumps(kept, sort_keys=True))


def recorded(case: Case, write: Callable[[sympy.Expr], str]) -> Json:
    """Write one case as plain data: equal, or what is left, or why not."""
    run_as = As(**{**vars(case.run_as), "seconds": LONGEST})
    found = prove(case.model, case.workload, run_as, case.quantities)
    return {
        "name": case.name,
        "quantities": {proof.quantity: _plain(proof, write) for proof in found},
    }


def _plain(proof: Proof, write: Callable[[sympy.Expr], str]) -> Json:
    if proof.problem or proof.form is None or proof.textbook is None:
        return {"problem": proof.problem}
    try:
        where = [
            [one.says, one.test]
            + ([{name: [text, *names] for name, text, names in one.defaults}] * bool(one.defaults))
            for one in conditions_of(proof, write)
        ]
    except ValueError as error:
        return {"problem": str(error)}
    found: Json = {"where": where}
    if proof.differences:
        words = dict(proof.words)
        left = {role: expr.xreplace(words) for role, expr in proof.differences.items()}
        found["differs"] = {role: write(expr) for role, expr in left.items()}
        found["zero"] = as_test(sympy.Eq(sum(left.values()), 0, evaluate=False))
    elif proof.idle is not None:
        found["more"] = write(sympy.factor(proof.idle))
    return {**found, "textbook": digest(proof.textbook), "code": digest(proof.form.total)}


def record_of(
    model: Json | ModelSpec, others: tuple[ModelSpec, ...], write: Callable[[sympy.Expr], str]
) -> Json:
    """Record all that was shown of one model's structure: of a config's type, or of our modules.

    `others` are specs of the same structure.
    """
    layers, forms = closed_forms(spec_of(model))
    found = [recorded(case, write) for case in cases(model, others)]
    conditions = {
        (says, test)
        for case in found
        for one in case["quantities"].values()
        for says, test, *_ in one.get("where", ())
    }
    limits = [re.fullmatch(r"-1\*(?:config_)?(\w+) \+ S < 0", test) for _, test in conditions]
    names = [f"S = {limit[1]}" for limit in limits if limit and limit[1] != "window"]
    if any(re.fullmatch(r"n_layers = \d+", says) for says, _ in conditions):
        names.append("n_layers = ")
    found += [recorded(case, write) for case in further_cases(model, others, sorted(names))]
    return {
        "structure": structure(spec_of(model)),
        "layers": layers,
        "forms": forms,
        "cases": found,
    }


def further_cases(
    model: Json | ModelSpec, others: tuple[ModelSpec, ...], names: Iterable[str]
) -> Iterator[Case]:
    """Yield the cases of a record that not every structure has: at its own numbers of layers, where
    few stayed a number, and with sequences as long as a size that they were shorter than.

    `names` are names of cases, or their beginnings.
    """
    limits = (re.match(r"S = (\w+)", name) for name in names)
    for limit in dict.fromkeys(limit[1] for limit in limits if limit):
        yield from cases_at_a_limit(model, limit)
    if any("n_layers = " in name for name in names):
        yield from cases_at_own_layers(model, others)


if __name__ == "__main__":
    sys.exit(main())
