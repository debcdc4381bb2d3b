"""The restated formulas of `metacount audit` beside the frameworks' own functions, at random sizes.

python benchmarks/frameworks.py [--venv DIR] [--sources DIR] [--names ID ...] [--save]

Makes a virtual environment of its own: torch first, then each package alone, without what it asks
for besides. A project that is on no index is taken from --sources, where OWNER/NAME@COMMIT is a
checkout at the commit that the audit names. Of a file only the function in question is compiled.
Each formula is compared at sizes drawn at random for the structures of the catalog's models that
its source claims; whole numbers must be equal. --save keeps what was compared, with versions.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import venv
from fractions import Fraction
from pathlib import Path
from typing import Any

from metacount.audit.judge import Absent, holds, models, place_of, values
from metacount.audit.record import RESULTS as KEPT
from metacount.audit.record import Formula, chosen
from metacount.check.sizes import random_cases
from metacount.errors import SpecError
from metacount.spec import ModelSpec, Workload

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "frameworks.json"
WORKER = HERE / "framework_functions.py"
TORCH = "torch==2.13.0"
# with what they need, as their code is imported; all else is only read
IMPORTED = ("transformers==5.23.0", "numpy", "packaging")
PACKAGES = (
    "litgpt==0.5.13",
    "torchtitan==0.3.0",
    "llm-foundry==0.22.0",
    "verl==0.9.1",
    "trl==1.16.0",
    "modalities==0.5.0",
    "nanotron==0.4",
    "xtuner==0.2.0",
)
EACH = 12  # random sizes for each of
STRUCTURES = 4  # structures
# models whose structure the function's own module is built with
BUILT = {"transformers-training": ("llama-7b", "mistral-7b", "smollm2-135m", "mixtral-8x7b")}
EXACT = 2**50  # floats of the functions are whole numbers below it
MEASURED = (
    "stored_params",
    "active_params",
    "token_table",
    "position_table",
    "matrix_params",
    "qk_norm_params",
    "bytes_per_value",
)


def environment(folder: Path) -> Path:
    """The interpreter of the virtual environment in `folder`, made where it is missing."""
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    ready = folder / "ready"
    wanted = "\n".join((TORCH, *IMPORTED, *PACKAGES))
    if not ready.exists() or ready.read_text(encoding="utf-8") != wanted:
        print(f"making {folder} (some minutes)", file=sys.stderr, flush=True)
        if not python.exists():
            venv.create(folder, with_pip=True)
        subprocess.run([*install, TORCH], check=True)
        subprocess.run([*install, *IMPORTED], check=True)
        subprocess.run([*install, "--no-deps", *PACKAGES], check=True)
        ready.write_text(wanted, encoding="utf-8")
    return python


def cases_of(formula: Formula) -> list[tuple[ModelSpec, Workload]]:
    """Random sizes for some structures inside the scope of a formula."""
    found: list[tuple[ModelSpec, Workload]] = []
    specs = [
        spec
        for id, spec in models()
        if holds(formula.scope, spec) and id in BUILT.get(formula.id, (id,))
    ]
    step = max(1, len(specs) // STRUCTURES)
    for spec in specs[::step][:STRUCTURES]:
        tried = (_fitted(formula, case) for case in random_cases(spec, Workload(), 20 * EACH))
        found += [case for case in tried if case is not None][:EACH]
    return found


def _fitted(
    formula: Formula, case: tuple[ModelSpec, Workload]
) -> tuple[ModelSpec, Workload] | None:
    """The case with widths as the scope has them; None where it is outside or no whole number."""
    spec, run = case
    changes: dict[str, Any] = {}
    if spec.attention == "gqa" and "head_dim" not in formula.scope and _d_over_h(formula):
        changes["d_model"] = spec.n_heads * spec.head_dim
    if "4 * d_model" in formula.scope:
        changes["d_ff"] = 4 * changes.get("d_model", spec.d_model)
    if "n_kv_heads == n_heads" in formula.scope:
        changes["n_kv_heads"] = spec.n_heads
    if spec.is_moe and not spec.top_k < spec.n_experts:
        return None  # some take one expert for none
    if spec.position == "learned":
        changes["n_positions"] = run.seq_len
    if formula.id == "maxtext-gemma2-training":
        changes["n_layers"] = 2 * spec.n_layers
    try:
        spec = spec.replace(**changes)
        value = theirs((formula, (spec, run)))
    except (Absent, SpecError, ZeroDivisionError):
        return None
    plain = value.denominator == 1 and value < EXACT
    return (spec, run) if plain and holds(formula.scope, spec) else None


def _d_over_h(formula: Formula) -> bool:
    return "heads_fill_model" in formula.scope or "training" in formula.id


def theirs(job: tuple[Formula, tuple[ModelSpec, Workload]]) -> Fraction:
    """What the restatement gives."""
    formula, case = job
    return sum(values(formula.terms, place_of(case)), Fraction(0))


def sizes_of(case: tuple[ModelSpec, Workload]) -> dict[str, Any]:
    """A case as plain data, with what a framework reads off the module it has built."""
    spec, run = case
    place = place_of(case)
    return {
        **spec.to_dict(),
        "batch_size": run.batch_size,
        "seq_len": run.seq_len,
        **{name: int(place[name]) for name in MEASURED},
    }


def compared(python: Path, sources: str | None, wanted: tuple[Formula, ...]) -> dict[str, Any]:
    """What each function gives, by id: versions, sizes, and how many differ."""
    cases = {formula.id: cases_of(formula) for formula in wanted}
    asked = {
        "cases": {id: [sizes_of(case) for case in found] for id, found in cases.items() if found},
        "sources": sources,
        "versions": {formula.source.project: formula.source.version for formula in wanted},
    }
    done = subprocess.run(
        [str(python), str(WORKER)],
        input=json.dumps(asked),
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = {}
    for id, answers in json.loads(done.stdout).items():
        formula = next(f for f in wanted if f.id == id)
        ours = [theirs((formula, case)) for case in cases[id]]
        found[id] = [_laid_beside(answer, ours) for answer in answers]
    return found


def _laid_beside(answer: dict[str, Any], ours: list[Fraction]) -> dict[str, Any]:
    if "error" in answer:
        return answer
    pairs = list(zip(map(int, answer["values"]), ours, strict=True))
    differ = [f"{there}, restated {here}" for there, here in pairs if there != here]
    return {
        "version": answer["version"],
        "sizes": len(pairs),
        "differ": len(differ),
        **({"first": differ[0]} if differ else {}),
    }


def main() -> int:
    """Compare and print; 1 where a restatement differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=HERE.parent / ".venv-frameworks")
    parser.add_argument("--sources", metavar="DIR")
    parser.add_argument("--names", metavar="ID", nargs="*", default=[])
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    wanted = tuple(f for f in chosen(tuple(args.names)) if f.judged)
    found = compared(environment(args.venv), args.sources, wanted)
    wrong = 0
    for id, answers in found.items():
        for one in answers:
            said = one.get("error") or one.get("first") or "equal"
            wrong += "differ" in one and one["differ"] > 0
            print(f"{id:38} {one['version']:44} {one.get('sizes', '-'):>4}  {said}")
    equal = {id: [a for a in answers if a.get("differ") == 0] for id, answers in found.items()}
    print(f"{sum(map(bool, equal.values()))} restatements equal the real function, {wrong} differ")
    if args.save:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        kept = {
            id: {"version": ", ".join(a["version"] for a in good), "sizes": good[0]["sizes"]}
            for id, good in equal.items()
            if good and len(good) == len(found[id])
        }
        KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
