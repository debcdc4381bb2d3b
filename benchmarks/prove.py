"""Proofs, type by type, that textbook formulas equal the forms read off transformers' code.

python benchmarks/prove.py [TYPE…] [--save metacount/proofs.json]

What `metacount verify --all-sizes` shows of one model, for the default config of every mapped
type, recorded with the structure it holds for; `count` reads the record. Exit code 1 when a
formula is refuted; a type that cannot be traced is recorded with the reason.
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

from metacount.huggingface.config import mapped_types, spec_from_config
from metacount.huggingface.model import running_config
from metacount.proof_record import structure
from metacount.proofs import prove
from metacount.spec import SpecError, Workload
from metacount.tracing.domain import in_words
from metacount.views.code_form import in_fields


def proved(model_type: str) -> dict[str, Any]:
    """The record of one type's default config."""
    logging.disable(logging.CRITICAL)
    config = running_config(model_type)
    try:
        spec = spec_from_config(config).spec
        found = prove(config, Workload(seq_len=128))
    except SpecError as error:
        return {"model_type": model_type, "problem": str(error)}
    return {
        "model_type": model_type,
        "structure": structure(spec),
        "proven": {
            proof.quantity: [in_words(c, in_fields) for c in proof.form.domain]
            for proof in found
            if proof.proven and proof.form is not None
        },
        "problems": {proof.quantity: proof.problem for proof in found if proof.problem},
        "refuted": {
            proof.quantity: {role: str(left) for role, left in proof.differences.items()}
            for proof in found
            if proof.differences
        },
    }


def main() -> int:
    """Prove, print, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("types", metavar="TYPE", nargs="*")
    parser.add_argument("--save", type=Path, help="write the record")
    args = parser.parse_args()
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    types = args.types or [name for name in mapped_types() if name in known]
    with ProcessPoolExecutor(2) as pool:
        records = []
        for record in pool.map(proved, types):
            records.append(record)
            print(json.dumps(record), file=sys.stderr, flush=True)
    proven = sum(len(record.get("proven", {})) for record in records)
    refuted = sum(len(record.get("refuted", {})) for record in records)
    print(f"{proven} formulas of {len(types)} types are proven for all sizes, {refuted} refuted")
    if args.save:
        structures: dict[str, Any] = {}
        for record in records:
            if record.get("proven"):
                structures.setdefault(
                    record["structure"],
                    {"model_type": record["model_type"], "quantities": record["proven"]},
                )
        data = {
            "torch": torch.__version__.partition("+")[0],
            "transformers": transformers.__version__,
            "structures": structures,
            "not_proven": {
                record["model_type"]: record.get("problem") or record["problems"]
                for record in records
                if "problem" in record or record["problems"]
            },
        }
        args.save.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return 1 if refuted else 0


if __name__ == "__main__":
    sys.exit(main())
