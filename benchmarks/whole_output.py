"""Everything that the commands print, into a folder, to lay beside the same of another checkout.

    python benchmarks/whole_output.py FOLDER                    # what takes a minute
    python benchmarks/whole_output.py FOLDER --full             # measured answers as well
    python benchmarks/whole_output.py FOLDER --against OLDER    # and the differences; 1 if any

A file for each command line: its exit code, what it wrote to stdout and to stderr. A change of the
code that should change nothing is run before and after.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from metacount import catalog, cli

SHOWN = 12  # lines of each difference
MEASURED = ("llama-7b", "gpt2", "bert-base", "t5-base", "gemma2-2b", "deepseek-v2", "gpt-oss-20b")
TREES = (*MEASURED, "mixtral-8x7b", "llama4-scout-text", "qwen3-0.6b", "pangu-alpha-207b")
FORMULAS = (
    "12*n_layers*d_model**2",
    "2*params*B*S",
    "V*d + N*(4*d**2 + 3*d*m + 2*d) + d",
    "4*n_layers*n_kv_heads*head_dim",
)
QUANTITIES = {
    "2*params*B*S": "matmul_flops",
    "4*n_layers*n_kv_heads*head_dim": "kv_cache_bytes_per_token",
}
# requests that are refused, each in one line, and sizes that somebody sets
SETTINGS = (
    "n_kv_heads=8",
    "n_kv_heads=7",
    "head_dim=none",
    "d_modle=5",
    "position=alibi",
    "window=1",
    "n_experts=8",
    "attention=mla",
    "tie_embeddings=true",
    "pooler=true",
    "n_layers=0",
    "activation=silly",
    "norm_eps=0",
    "rope_scaling=2",
    "gated=1",
    "window_pattern=LX",
    "kind=encoder",
    "d_ff=none",
    "norm_placement=post",
    "qk_norm=head",
    "n_layers=2",
)


def quick() -> Iterator[list[str]]:
    """Command lines that need no module."""
    yield from (["models"], ["models", "--json"], ["models", "--fields"])
    yield ["models", "--fields", "--json"]
    for name in catalog.ids():
        for form in ([], ["--json"]):
            yield ["count", name, *form]
            yield ["formula", name, *form]
        yield ["count", name, "--seq", "17", "--batch", "3", "--dtype", "fp32"]
    for setting in SETTINGS:
        for name in ("llama-7b", "gpt2", "deepseek-v2", "t5-base", "gpt-oss-20b"):
            yield ["count", name, "--set", setting, "--json"]


def measured() -> Iterator[list[str]]:
    """Command lines that instantiate modules, or search."""
    for form in ([], ["--json"]):
        for name in TREES:
            yield ["tree", name, *form]
        for name in MEASURED:
            yield ["verify", name, "--seq", "64", *form]
            for formula in FORMULAS:
                quantity = QUANTITIES.get(formula, "params")
                yield ["check", formula, name, "--quantity", quantity, *form]
        yield ["claims", *form]


def written(line: list[str]) -> str:
    """What a command line gives."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(line)
    said = re.sub(r"\b\d+(\.\d+)? m?s\b", "SOME TIME", err.getvalue().rpartition("\r")[2])
    return f"exit {code}\n--- stdout\n{out.getvalue()}--- stderr\n{said}"


def file_name(line: list[str]) -> str:
    """A name for a command line's file."""
    return re.sub(r"[^\w.=-]+", "_", "_".join(line).replace("*", "x").replace("+", "p")) + ".txt"


def differences(older: Path, newer: Path, names: set[str]) -> list[str]:
    """Lines that say which of the named files differ between two folders, and how."""
    found = []
    for name in sorted(names):
        both = [folder / name for folder in (older, newer)]
        missing = [str(path) for path in both if not path.exists()]
        if missing:
            found.append(f"{missing[0]} is missing")
            continue
        texts = [path.read_text(encoding="utf-8").splitlines() for path in both]
        if texts[0] != texts[1]:
            changes = list(difflib.unified_diff(*texts, lineterm="", n=0))[2:]
            more = [f"... {len(changes) - SHOWN} lines more"] if len(changes) > SHOWN else []
            found += [name, *(f"    {line[:200]}" for line in [*changes[:SHOWN], *more])]
    return found


def main() -> int:
    """Write the folder, and lay it beside an older one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--full", action="store_true", help="measured answers as well")
    parser.add_argument("--against", type=Path, metavar="OLDER", help="list the differences")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    lines = [*quick(), *(measured() if args.full else ())]
    for line in lines:
        try:
            text = written(line)
        except Exception as error:  # a crash is an output like any other: it must not be new
            text = f"crashed: {type(error).__name__}: {error}\n"
        (args.folder / file_name(line)).write_text(text, encoding="utf-8")
    print(f"{len(lines)} command lines", file=sys.stderr)
    if args.against is None:
        return 0
    found = differences(args.against, args.folder, {file_name(line) for line in lines})
    print("\n".join(found) or "no difference")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
