"""Proofs, model by model, that textbook formulas equal the forms read off code.

python benchmarks/prove.py [TYPE…] [--save metacount/proofs.json]

What `metacount verify --all-sizes` shows of one model, for the default config of every mapped
type (transformers' code) and for every structure in the catalog (our reference modules), recorded
with the structure it holds for; `count` reads the record. Exit code 1 when a formula is refuted;
what cannot be traced, or only for one number of a size, is recorded with the reason.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers
from sympy import Eq

from metacount.catalog import entries, entry
from metacount.figures import fitted
from metacount.huggingface.config import mapped_types, spec_from_config
from metacount.huggingface.families import family_of
from metacount.huggingface.model import running_config
from metacount.proof_record import structure
from metacount.proofs import Proof, prove
from metacount.spec import ModelSpec, SpecError, Workload
from metacount.tracing.domain import in_words
from metacount.views.code_form import in_fields


def proved(model_type: str) -> dict[str, Any]:
    """The record of one type's default config, against transformers' code.

    Of its first class that has a spec, where the default one has none (BartForCausalLM).
    """
    config = running_config(model_type)
    family = family_of(model_type)
    assert family is not None  # the type is mapped
    known = [name for name, end in family.classes.items() if end is not None]
    if "architectures" not in config and next(iter(family.classes)) not in known:
        config = {**config, "architectures": known[:1]}
    try:
        return _record(model_type, spec_from_config(config).spec, config)
    except SpecError as error:
        return {"name": model_type, "problem": str(error)}


def proved_of_catalog(name: str) -> dict[str, Any]:
    """The record of one model of the catalog, against our reference modules."""
    spec = entry(name).spec()
    return _record(name, spec, spec)


def _record(name: str, spec: ModelSpec, model: Any) -> dict[str, Any]:
    logging.disable(logging.CRITICAL)
    found = prove(model, fitted(spec, Workload(seq_len=64)))
    problems = {proof.quantity: proof.problem or _fixed(proof) for proof in found}
    return {
        "name": name,
        "structure": structure(spec),
        "proven": {
            proof.quantity: [
                *(in_words(c, in_fields) for c in proof.form.domain),
                *proof.form.solved,
            ]
            for proof in found
            if proof.proven and proof.form is not None and not _fixed(proof)
        },
        "problems": {quantity: problem for quantity, problem in problems.items() if problem},
        "refuted": {
            proof.quantity: {role: str(left) for role, left in proof.differences.items()}
            for proof in found
            if proof.differences
        },
    }


def _fixed(proof: Proof) -> str:
    """What keeps a form to one number of a size: then it was not shown for all of them."""
    fixed = [c for c in (proof.form.domain if proof.form else ())
             if isinstance(c, Eq) and c.rhs.is_Integer]  # fmt: skip
    return "shown only where " + "; ".join(in_words(c, in_fields) for c in fixed) if fixed else ""


def distinct_structures() -> list[str]:
    """One model of the catalog for each structure."""
    found: dict[str, str] = {}
    for model in entries():
        if model.sizes is not None:
            found.setdefault(structure(model.spec()), model.id)
    return list(found.values())


def main() -> int:
    """Prove, print, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("types", metavar="TYPE", nargs="*")
    parser.add_argument("--save", type=Path, help="write the record")
    args = parser.parse_args()
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    types = args.types or [name for name in mapped_types() if name in known]
    models = [] if args.types else distinct_structures()
    with ProcessPoolExecutor(2) as pool:
        of_types, of_catalog = [], []
        for run, names, records in (
            (proved, types, of_types),
            (proved_of_catalog, models, of_catalog),
        ):
            for record in pool.map(run, names):
                records.append(record)
                print(json.dumps(record), file=sys.stderr, flush=True)
    refuted = 0
    for records, code in ((of_types, "transformers' code"), (of_catalog, "our modules")):
        proven = sum(len(record.get("proven", {})) for record in records)
        wrong = sum(len(record.get("refuted", {})) for record in records)
        print(f"{proven} formulas of {len(records)} models equal {code} for all sizes, "
              f"{wrong} do not")  # fmt: skip
        refuted += wrong
    if args.save:
        data = {
            "torch": torch.__version__.partition("+")[0],
            "transformers": transformers.__version__,
            "structures": _by_structure(of_types, "model_type"),
            "reference": _by_structure(of_catalog, "model"),
            "not_proven": {
                record["name"]: record.get("problem") or record["problems"]
                for record in (*of_types, *of_catalog)
                if "problem" in record or record["problems"]
            },
        }
        args.save.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return 1 if refuted else 0


def _by_structure(records: list[dict[str, Any]], named: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for record in records:
        if record.get("proven"):
            found.setdefault(
                record["structure"], {named: record["name"], "quantities": record["proven"]}
            )
    return found


if __name__ == "__main__":
    sys.exit(main())
