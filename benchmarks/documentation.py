"""The generated parts of README.md and docs/: tables of saved results, and of what is judged today.

python benchmarks/documentation.py [--check]

A part stands between `<!-- NAME -->` and `<!-- /NAME -->`. With --check nothing is written; exit
code 1 when a part is not what would be written. A test asks the same.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import peer_results
import peer_training_results

import metacount
from metacount.audit.judge import Audited, audit, misses_at
from metacount.bench.rows import latest_run, read
from metacount.cli import main as metacount_main
from metacount.cli.audit import percent
from metacount.cli.report import wrapped
from metacount.errors import InputError, SpecError
from metacount.huggingface.config.to_spec import mapped_types

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A table in Markdown, whose first `words` columns are to the left."""
    sides = ["---" if i < words else "--:" for i in range(len(heads))]
    lines = ["| " + " | ".join(cells) + " |" for cells in (heads, *rows)]
    return "\n".join([lines[0], "|" + "|".join(sides) + "|", *lines[1:]]) + "\n"


def saved(name: str) -> Any:
    return json.loads((RESULTS / name).read_text("utf-8"))


def in_text(lines: Iterable[str]) -> str:
    return "\n".join(["```text", *lines, "```", ""])


def peers() -> str:
    return in_text(peer_results.text_of(saved("peers.json")).partition("\n\n")[0].splitlines())


def peers_short() -> str:
    """How many of the models are exact, by tool."""
    data = saved("peers.json")
    names = ("params", "active_params", "flops", "kv_cache_bytes")
    rows = [
        [each["tool"], *("-" if (n := each["exact"][name]) is None else str(n) for name in names)]
        for each in data["summary"]
    ]
    return markdown(("tool", "parameters", "active", "FLOPs", "KV cache"), rows)


def peers_training() -> str:
    return in_text(peer_training_results.summary_lines(saved("peers_training.json")))


SOURCES = ("source", "formulas", "equal", "off, at most", "where", "the largest parts of it")
WORTH = Fraction(1, 100)  # a source that is off by less stands in a line below the table


def audited() -> str:
    """A row for each source that is off by a percent or more in its scope; then the rest."""
    by_source: dict[str, list[Audited]] = {}
    for judged in audit():
        by_source.setdefault(judged.formula.source.name, []).extend([judged] * bool(judged.found))
    rows, smaller, equal = [], [], []
    for name, group in by_source.items():
        off = [(a, w) for a in group if (w := a.worst()) is not None]
        if not off:
            equal += [name] if group else []
            continue
        judged, worst = max(off, key=lambda pair: abs(pair[1].off))
        if abs(worst.off) < WORTH:
            smaller.append(name)
            continue
        missed = "; ".join(line["of"] for line in misses_at(judged.formula, worst)[:2])
        where = f"`{judged.formula.id}`, {worst.model}"
        counts = str(len(group)), str(len(group) - len(off)), percent(worst.off)
        rows.append((name, *counts, where, missed or "not accounted for"))
    table = markdown(SOURCES, rows).replace("--:|--:|\n", "---|---|\n", 1)
    rest = {
        "Off by less than 1 %": smaller,
        "No model of the catalog inside the scope differs": equal,
    }
    for words, names in rest.items():
        if names:
            lines = ["", *wrapped(f"{words}: {', '.join(names)}.", 100)]
            table += "".join(f"{line}\n" for line in lines)
    return table


# Variants of the feed-forward as they are called in the table.
VARIANTS = {
    "gelu": "GELU, width 4·d",
    "swiglu": "SwiGLU, equal parameters",
    "swiglu-joined": "SwiGLU, gate and up in one product",
    "swiglu-joined-compiled": "the same, compiled",
    "swiglu-4d": "SwiGLU, width 4·d",
}


def ffn() -> str:
    """Qwen3-0.6B's sizes, 256 tokens, caches warm."""
    latest = latest_run(read(str(RESULTS / "ffn.jsonl")))
    where = ("qwen3-0.6b", {"tokens": 256}, "hot", "fp32", 2)
    found = {
        row["variant"]: row
        for row in latest
        if tuple(row[n] for n in ("model", "workload", "state", "dtype", "threads")) == where
    }
    rows = [
        (
            name,
            f"{1e3 * row['median_s']:.1f} ms",
            f"{1e3 * row['p20_s']:.1f} – {1e3 * row['p80_s']:.1f}",
            f"{row['tflops_per_s']:.3f}",
            f"{100 * row['ceiling_share']:.0f} %",
            f"{row['ratio']:.2f}"
            + (" ~" if row["within_noise"] and variant != row["baseline"] else ""),
        )
        for variant, name in VARIANTS.items()
        for row in [found[variant]]
    ]
    heads = ("variant", "median", "p20 – p80", "TFLOP/s", "of the best product", "ratio")
    return markdown(heads, rows)


# Columns of the table of an H200, by variant.
ON_GPU = {
    "swiglu": "SwiGLU, equal parameters",
    "swiglu-triton": "with silu·up in one kernel",
    "swiglu-4d": "SwiGLU, width 4·d",
}


def ffn_gpu() -> str:
    """LLaMA-7B's sizes in bf16, hot graphs, of the last run with the most numbers of tokens."""
    where = ("llama-7b", "bf16", "hot", "graph", "forward", "ok")
    names = ("model", "dtype", "state", "launch", "direction", "status")
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    for row in read(str(RESULTS / "gpu-ffn.jsonl")):
        if tuple(row[n] for n in names) == where:
            run = runs.setdefault(row["date"], {})
            run.setdefault(row["workload"]["tokens"], {})[row["variant"]] = row
    found = max(reversed(runs.values()), key=len)

    def ratio(row: dict[str, Any]) -> str:
        if row["ratio_low"] is None:
            return f"{row['ratio']:.2f}"
        return f"{row['ratio']:.2f} ({row['ratio_low']:.2f} – {row['ratio_high']:.2f})"

    rows = [
        (
            f"{tokens:,}",
            f"{1e6 * at['gelu']['median_s']:,.0f} µs",
            f"{1e6 * at['swiglu']['median_s']:,.0f} µs",
            f"{100 * at['swiglu']['ceiling_share']:.0f} %",
            *(ratio(at[variant]) for variant in ON_GPU),
        )
        for tokens, at in sorted(found.items())
    ]
    heads = ("tokens", "GELU, 4·d", "SwiGLU", "of the best product", *ON_GPU.values())
    return markdown(heads, rows)


# A model of each kind that meshes treat in its own way.
KINDS = {
    "attention in every layer": "llama3-8b",
    "with experts": "mixtral-8x7b",
    "MLA and experts": "deepseek-v3",
    "MLA with an indexer": "deepseek-v3.2",
    "attention that picks blocks": "minimax-m3-text",
    "experts beside a feed-forward": "longcat-flash",
    "recurrent layers": "jamba-1.5-mini",
    "blocks that layers share": "zamba2-2.7b",
    "encoder with a pooler": "bert-base",
    "encoder-decoder": "t5-small",
    "one table of T5 biases for all layers": "lamda-137b",
    "AltUp": "gemma-3n-e2b-text",
}
MESHES = {"dp": "dp=2", "tp": "tp=2", "pp": "pp=2", "ep": "dp=2,ep=2", "cp": "cp=2"}


def meshes() -> str:
    """Which degrees a kind of model takes, serving and training, by formula."""
    rows = []
    for kind, name in KINDS.items():
        row = [kind, f"`{name}`"]
        for degree, mesh in MESHES.items():
            taken = [way for way in ("serving", "training") if _takes(name, mesh, way)]
            moe = metacount.find_model(name).spec.is_moe
            none = "no" if moe or degree != "ep" else "-"
            row.append("yes" if len(taken) == 2 else taken[0] if taken else none)
        rows.append(row)
    return markdown(("model", "for example", *MESHES), rows, words=2 + len(MESHES))


def _takes(name: str, mesh: str, way: str) -> bool:
    training = {"train": True, "attention": "flash"} if way == "training" else {}
    try:
        metacount.shard(name, mesh, formula=True, **training)
    except (InputError, SpecError):
        return False
    return True


# What torchtitan's team published: model, mesh, batch of all ranks, tokens of a sequence, GiB.
TORCHTITAN = (
    ("llama3-8b", "dp=8", 8, 32_768, 83.9),
    ("llama3-8b", "dp=4,cp=2", 4, 65_536, 84.2),
    ("llama3-8b", "dp=2,cp=4", 2, 131_072, 84.0),
    ("llama3-8b", "dp=1,cp=8", 1, 262_144, 84.5),
    ("llama3-70b", "dp=32,tp=8", 512, 8_192, 71.9),
    ("llama3.1-405b", "dp=8,tp=8,pp=8", 256, 8_192, 82.5),
)


def torchtitan() -> str:
    """What a rank holds by formula, beside what was measured."""
    rows = []
    for name, mesh, batch, length, measured in TORCHTITAN:
        found = metacount.shard(
            name,
            mesh,
            train=True,
            formula=True,
            attention="flash",
            checkpointing="full",
            mixed_precision=True,
            batch_size=batch,
            seq_len=length,
            sequence_parallel=True,
            loss_parallel=True,
        ).largest
        gib = [f"{n / 2**30:.1f}" for n in (found.total_bytes, found.most_bytes)]
        rows.append((f"`{name}`", f"`{mesh}`", str(batch), f"{length:,}", *gib, str(measured)))
    heads = ("model", "mesh", "batch", "seq", "counted", "at most", "measured")
    return markdown(heads, rows, words=2)


VERDICTS = {
    "quantities": "equal",
    "equal_for_chosen_experts": "equal, for the experts chosen",
    "differs": "different",
    "not_said": "not proven here",
}


def proven() -> str:
    """What `count` says of the mapped types at their default configs."""
    theirs, ours = Counter[str](), Counter[str]()
    counted = recorded = 0
    for name in mapped_types():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            code = metacount_main(["count", f"type:{name}", "--json"])
        data = {} if code else json.loads(printed.getvalue())
        counted += data.get("source") == "formula"
        proof = data.get("proof")
        if proof is None:
            continue
        recorded += 1
        theirs.update({key: len(proof[key]) for key in VERDICTS})
        if proof["reference"]:
            ours.update({key: len(proof["reference"][key]) for key in VERDICTS})
    rows = [
        (who, *(str(found[key]) for key in VERDICTS))
        for who, found in (("transformers' code", theirs), ("our reference modules", ours))
    ]
    return (
        f"{len(mapped_types())} model types have formulas; {counted} of them at their default "
        f"config, and {recorded} of these\nhave records. Figures (parameters, active parameters, "
        "FLOPs, FLOPs of decoding, KV cache) by verdict:\n\n"
        + markdown(("compared with", *VERDICTS.values()), rows)
    )


PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "peers-short": ("README.md", peers_short),
    "peers": ("docs/other-tools.md", peers),
    "peers-training": ("docs/other-tools.md", peers_training),
    "audit": ("docs/other-tools.md", audited),
    "ffn": ("docs/benchmarks.md", ffn),
    "ffn-gpu": ("docs/benchmarks.md", ffn_gpu),
    "meshes": ("docs/meshes.md", meshes),
    "torchtitan": ("docs/meshes.md", torchtitan),
    "proven": ("docs/proofs.md", proven),
}


def replaced(text: str, name: str, part: str) -> str:
    """The text with another part of this name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"no part <!-- {name} -->")
    # between a comment and a table Markdown wants an empty line
    return f"{before}{begin}\n{part}{end}{after}"


def renewed(name: str) -> tuple[Path, str, str]:
    """The file of a part, its text, and the text as it should be."""
    file, make = PARTS[name]
    text = (ROOT / file).read_text("utf-8")
    return ROOT / file, text, replaced(text, name, make())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(PARTS)}")
    args = parser.parse_args()
    stale = 0
    for name in args.names or PARTS:
        path, text, new = renewed(name)
        if new != text:
            stale += 1
            print(f"{path.relative_to(ROOT)}: {name} " + ("is stale" if args.check else "written"))
        if not args.check:
            path.write_text(new, "utf-8")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
