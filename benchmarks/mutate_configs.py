"""Configs with odd values at every key: `count` by formula against what transformers builds.

python benchmarks/mutate_configs.py [TYPE…] [--draws 50] [--run 20] [--seed 1] [--all] [--save FILE]

For every mapped model type: each key of its config class, and each that our reading knows, at each
of a list of odd values, on a small config of few keys, on one with all keys that save_pretrained
writes, under transformers' other names of keys and for the type's other classes; besides, --draws
random changes of two and of three keys at once. A count by formula must be the `numel()` of what
transformers builds; a config can also be left to transformers, or refused with the reason. With
--run, so many of the accepted changes of each type are run, and FLOPs, decode and KV cache compared
as well. Exit code 1 when a count was wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

SHOWN = 5  # wrong ones of a type


def of_type(model_type: str, draws: int, run: int, seed: int, ask: bool) -> dict[str, Any]:
    """The verdicts of one type, counted; and every wrong or unsaid config with what was said."""
    from helpers.mutated_configs import answers, bases, figures_differ, mutants

    whole = bases(model_type)
    verdicts: Counter[str] = Counter()
    odd, accepted = [], []
    for base, change in mutants(model_type, draws, seed):
        config = {**whole[base], **dict(change)}
        found = answers(config, ask_always=ask)
        verdicts[found.verdict] += 1
        if found.verdict == "equal":
            accepted.append((base, change, config))
        elif found.verdict in ("wrong", "refused, not said", "said to be refused, but built"):
            odd.append([found.verdict, base, change, found.ours, found.theirs, found.their_reason])
    # a change of a key that no type depends on says nothing about a forward
    draw = random.Random(f"{seed} {model_type}")
    chosen = draw.sample(accepted, min(run, len(accepted)))
    for base, change, config in chosen:
        if differences := figures_differ(config):
            odd.append(["figures differ", base, change, None, None, "; ".join(differences)])
    verdicts["figures differ"] = sum(entry[0] == "figures differ" for entry in odd)
    return {
        "type": model_type,
        "tried": sum(verdicts.values()) - verdicts["figures differ"],
        "run": len(chosen),
        "verdicts": dict(verdicts),
        "odd": odd,
    }


def main() -> int:
    from metacount.huggingface.config.to_spec import mapped_types

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*", metavar="TYPE", help="model types; else all mapped")
    parser.add_argument("--draws", type=int, default=50, help="random changes, of two and three")
    parser.add_argument("--run", type=int, default=20, help="configs of a type to run as well")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="build also what we do not count")
    parser.add_argument("--save", type=Path, help="a JSON file for all that was found")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # transformers' advice on token numbers
    import torch
    from helpers.mutated_configs import VERDICTS

    torch.set_num_threads(1)
    rows, total = [], Counter[str]()
    for model_type in args.types or mapped_types():
        start = time.time()
        row = of_type(model_type, args.draws, args.run, args.seed, args.all)
        rows.append(row)
        total.update({**row["verdicts"], "run": row["run"], "tried": row["tried"]})
        bad = [entry for entry in row["odd"] if entry[0] in ("wrong", "figures differ")]
        print(
            f"{model_type}: {row['tried']} tried, {row['verdicts'].get('equal', 0)} equal, "
            f"{len(bad)} wrong, {time.time() - start:.0f} s",
            flush=True,
        )
        for entry in bad[:SHOWN]:
            print("   ", json.dumps(entry)[:300], flush=True)
        if args.save:
            args.save.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    print(f"\n{len(rows)} types, seed {args.seed}: {total['tried']} tried")
    for verdict in VERDICTS:
        print(f"  {total[verdict]:8,}  {verdict}")
    print(f"{total['run']} equal ones run: {total['figures differ']} with other FLOPs or cache")
    return 1 if total["wrong"] or total["figures differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
