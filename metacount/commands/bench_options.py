"""The options of `metacount bench`."""

from __future__ import annotations

import argparse

from metacount.commands.options import add_json
from metacount.errors import shown

TOPICS = ("ffn", "attention", "mla", "moe", "norm")
DIRECTIONS = ("forward", "backward", "forward+backward")
DTYPES = ("bf16", "fp16", "tf32", "fp32")
LARGEST = 2**24  # of any size; larger ones are a slip of the finger
LONGEST = 7 * 86400  # seconds of a budget
SAVED = ""  # --save without a file


def _size(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 0 < int(text) <= LARGEST):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1: got '{shown(text)}'")
    return int(text)


def _between(text: str, what: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:  # not a number is refused too
        raise argparse.ArgumentTypeError(f"must be {what}, 0 to {most}: got '{shown(text)}'")
    return value


def _seconds(text: str) -> float:
    return _between(text, "seconds", 3600)


def _budget(text: str) -> float:
    return _between(text, "seconds", LONGEST)


def _percent(text: str) -> float:
    return _between(text, "percent", 100)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Every variant is compared with a float64 reference, and its FLOPs with the operators "
        "that run, before it is timed; a difference is a row of its own and exit code 1, and so "
        "is a run, or a case of it, that measured nothing."
    )
    parser.add_argument("topic", metavar="TOPIC", choices=TOPICS, help=", ".join(TOPICS))
    what = parser.add_argument_group("what is timed")
    what.add_argument(
        "--model", nargs="+", metavar="NAME", help="take the sizes of these models of the catalog"
    )
    what.add_argument(
        "--d-model", nargs="+", type=_size, metavar="N", help="of ffn: these widths, in no model"
    )
    what.add_argument(
        "--d-ff",
        nargs="+",
        type=_size,
        metavar="N",
        help="of ffn: SwiGLU at these widths too (swiglu-own)",
    )
    what.add_argument(
        "--tokens", nargs="+", type=_size, metavar="N", help="tokens of ffn, moe and norm"
    )
    what.add_argument(
        "--seq",
        nargs="+",
        type=_size,
        metavar="N",
        help="prefill of attention and mla: so many tokens",
    )
    what.add_argument(
        "--kv-len",
        nargs="+",
        type=_size,
        metavar="N",
        help="decode of attention and mla: one token that attends to so many, itself included",
    )
    what.add_argument(
        "--batch", nargs="+", type=_size, metavar="N", help="sequences of attention and mla"
    )
    what.add_argument(
        "--part",
        choices=("layer", "core"),
        help="of attention: core is what lies between the projections",
    )
    what.add_argument(
        "--parts", action="store_true", help="of ffn: each product and the activation alone as well"
    )
    what.add_argument(
        "--equal-time",
        action="store_true",
        help="of ffn: the width at which SwiGLU takes GELU's time",
    )
    what.add_argument(
        "--direction",
        nargs="+",
        metavar="WAY",
        choices=DIRECTIONS,
        help=f"of ffn: {', '.join(DIRECTIONS)} (default forward)",
    )
    what.add_argument(
        "--routing", nargs="+", choices=("balanced", "skewed"), help="of moe (default both)"
    )
    what.add_argument(
        "--dtype",
        nargs="+",
        metavar="DTYPE",
        choices=DTYPES,
        help=f"{', '.join(DTYPES)} (default bf16 on CUDA, else fp32)",
    )
    what.add_argument("--device", choices=("cpu", "cuda"), help="default cuda where there is one")
    what.add_argument("--variant", nargs="+", metavar="NAME", help="only these variants")
    what.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    what.add_argument(
        "--autotune",
        action="store_true",
        help="of ffn: torch.compile in its mode max-autotune as well",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--state",
        nargs="+",
        choices=("hot", "cold"),
        help="caches as they are, or flushed first (default both)",
    )
    how.add_argument(
        "--launch",
        nargs="+",
        choices=("eager", "graph"),
        help="on CUDA: from Python, or as a CUDA graph (default both)",
    )
    how.add_argument(
        "--precision",
        type=_percent,
        metavar="PERCENT",
        help="stop when every median is known to so much of it, up or down, at 95 %% "
        "confidence (default 0.5)",
    )
    how.add_argument(
        "--rounds",
        type=_size,
        metavar="N",
        help="most rounds; each variant has one turn in a round (default 40)",
    )
    how.add_argument(
        "--seconds",
        type=_seconds,
        metavar="X",
        help="stop, after three rounds, when they have lasted so long for each "
        "variant, launch and state (default 0.3)",
    )
    how.add_argument(
        "--budget",
        type=_budget,
        metavar="SECONDS",
        help="of the whole run: cases that by an estimate would not fit any more are "
        "rows that say so",
    )
    how.add_argument(
        "--no-ceiling",
        action="store_true",
        help="do not measure what the device can do; no shares then",
    )
    out = parser.add_argument_group("what becomes of it")
    out.add_argument(
        "--save",
        nargs="?",
        const=SAVED,
        metavar="FILE",
        help="append the rows as JSON lines to FILE (default "
        "metacount-bench-TOPIC.jsonl in the current folder)",
    )
    out.add_argument(
        "--compare", metavar="OLD", help="lay the medians beside those of a file that --save wrote"
    )
    out.add_argument(
        "--list", action="store_true", help="print the cases and variants, and run nothing"
    )
    out.add_argument(
        "--dry-run",
        action="store_true",
        help="print shapes, FLOPs, bytes and an estimate of the time, and run "
        "nothing; needs no device",
    )
    add_json(parser)
