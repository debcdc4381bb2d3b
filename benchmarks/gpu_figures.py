"""The figures asked of a GPU, computed from the rows that `on_a_gpu.py` saved.

    python benchmarks/gpu_figures.py [FILE...]      (default benchmarks/results/gpu-ffn.jsonl)

* SwiGLU at LLaMA-7B's sizes, 8,192 tokens, bf16: its share of the best product of its run;
* the time of SwiGLU over that of GELU at equal parameters, with the interval;
* the number of tokens at which memory stops being the bound, against the roofline's prediction;
* how far two runs of the same command lie apart.

What the rows do not hold is said to be missing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metacount.bench.rows import FORWARD, OK, read
from metacount.cli.pictures_of_benchmarks import split

FILE = Path(__file__).resolve().parent / "results" / "gpu-ffn.jsonl"
MODEL, TOKENS, DTYPE = "llama-7b", 8192, "bf16"
ASKED_SHARE, ASKED_REPEAT = 0.90, 0.01

Line = dict[str, Any]


def timed(lines: Sequence[Line], **wanted: Any) -> list[Line]:
    """Hot forward graphs of a variant, in the order in which they were measured."""
    fixed = {"status": OK, "state": "hot", "launch": "graph", "direction": FORWARD, "topic": "ffn"}
    return [line for line in lines if all(line.get(k) == v for k, v in (fixed | wanted).items())]


def turning_point(lines: Sequence[Line]) -> float | None:
    """Tokens at which the time of one token meets the time that grows with the tokens.

    Below it the time is that of moving the weights, the same for each number of tokens; above it
    grows in proportion. It is taken from the fewest and the most tokens measured.
    """
    by_tokens = {line["workload"]["tokens"]: line["median_s"] for line in lines}
    if len(by_tokens) < 2:
        return None
    few, many = min(by_tokens), max(by_tokens)
    return float(many * by_tokens[few] / by_tokens[many])


def predicted(line: Line) -> float:
    """The same by the roofline: what one token computes at the ceiling, the weights at the copy.

    FLOPs grow with the tokens; the bytes of one token are its weights but for a thousandth.
    """
    roof = line["ceiling"]
    tokens = line["workload"]["tokens"]
    memory = roof["bytes_per_s"]
    if roof.get("read_bytes_per_s"):
        memory = max(memory, roof["read_bytes_per_s"])
    return float(
        line["moved_bytes"] / memory * roof["flops_per_s"] / (line["needed_flops"] / tokens)
    )


def sentences(lines: Sequence[Line]) -> list[str]:
    """Each figure in a sentence, or that it is missing."""
    said = []
    at = timed(lines, model=MODEL, dtype=DTYPE, workload={"tokens": TOKENS})
    swiglu = [line for line in at if split(line["variant"])[0] == "swiglu"]
    what = f"{MODEL}, {TOKENS:,} tokens, {DTYPE}"
    if swiglu:
        best = max(swiglu, key=lambda line: line["ceiling_share"])
        enough = "at least" if best["ceiling_share"] >= ASKED_SHARE else "less than"
        said.append(
            f"{what}: {best['variant']} reaches {100 * best['ceiling_share']:.1f} % of the best "
            f"product of its run, {enough} {100 * ASKED_SHARE:.0f} %"
        )
    else:
        said.append(f"{what}: missing")
    plain = [line for line in at if line["variant"] == "swiglu"]
    if plain and plain[-1].get("ratio_low") is not None:
        last = plain[-1]
        said.append(
            f"{what}: SwiGLU / GELU at equal parameters {last['ratio']:.4f} "
            f"({last['ratio_low']:.4f} - {last['ratio_high']:.4f})"
        )
    else:
        said.append(f"{what}: SwiGLU / GELU with its interval: missing")
    for model in dict.fromkeys(line["model"] for line in timed(lines, dtype=DTYPE)):
        row = timed(lines, model=model, dtype=DTYPE, variant="swiglu")
        found = turning_point(row)
        if found is not None:
            few = min(row, key=lambda line: int(line["workload"]["tokens"]))
            said.append(
                f"{model}, {DTYPE}: memory is the bound up to {found:.0f} tokens; the roofline "
                f"says {predicted(few):.0f}"
            )
    said.append(repeated(plain))
    return said


def repeated(lines: Sequence[Line]) -> str:
    """How far the first and the last run of the same point lie apart."""
    if len({line["date"] for line in lines}) < 2:
        return "the same command twice: missing"
    first, last = lines[0], lines[-1]
    apart = max(first["median_s"], last["median_s"]) / min(first["median_s"], last["median_s"]) - 1
    within = "within" if apart <= ASKED_REPEAT else "not within"
    return f"the same command twice: {100 * apart:.2f} % apart, {within} {100 * ASKED_REPEAT:.0f} %"


def main(files: Sequence[str]) -> int:
    """Print every figure of these files."""
    found = [line for file in files or [str(FILE)] for line in read(file)]
    print("\n".join(sentences(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
