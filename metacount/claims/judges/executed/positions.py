"""Claims about positions: the reference modules run on CPU.

Small sizes, float64, fixed seed; equal means equal but for rounding, which is printed.
"""

from __future__ import annotations

import math

import torch

from metacount.claims.finding import RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.executed.small import ROUNDING, WITNESS, normal, small, unequal
from metacount.claims.text import Words, say
from metacount.measure.ours import measure_params
from metacount.modules import apply_rope
from metacount.modules.build import build
from metacount.modules.position import sinusoid


def position_params(claim: Claim) -> Finding:
    """Judge whether a kind of position adds no parameters to a model
    without positions. Options: `position`.
    """
    kinds = ("none", "alibi", "rope", "sinusoidal", "learned")
    heads = {"n_kv_heads": 3, "head_dim": 8, "d_ff": 16}
    counts = {}
    for kind in kinds:
        rows = 50 if kind == "learned" else None
        counts[kind] = measure_params(
            build(small("llama-7b", **heads, position=kind, n_positions=rows))
        ).params
    added = counts[claim.options["position"]] - counts["none"]
    return Finding(
        verdict=RIGHT if added == 0 else WRONG,
        says=say(
            "The same model has {none} parameters without positions and {with_them} with them.",
            none=f"{counts['none']:,}",
            with_them=f"{counts[claim.options['position']]:,}",
        ),
        correct=say("{n} parameters", n=f"{added:,}"),
        computation=(
            say("2 layers, d = 24, 50 positions; parameters of the module on the meta device"),
            *(f"{kind}: {n:,} ({n - counts['none']:+,})" for kind, n in counts.items()),
        ),
        values={kind: n - counts["none"] for kind, n in counts.items()},
        witness=say("reference modules, measured"),
    )


def rope_shift(claim: Claim) -> Finding:
    """Judge whether scores of rotated queries
    and keys stay the same when both positions move equally far.
    """
    head_dim, shifts = 16, (0, 1, 10, 1000, 100_000)
    q, k = normal(1, 1, 1, head_dim), normal(1, 1, 1, head_dim, seed=1)

    def score(i: int, j: int, dtype: torch.dtype = torch.float64) -> float:
        turned = [
            apply_rope(
                x.to(dtype), torch.tensor([at]), rotary_dim=head_dim, theta=10000.0, style="half"
            )
            for x, at in ((q, i), (k, j))
        ]
        return float((turned[0] * turned[1]).sum())

    lines: list[Words] = []
    means: list[float] = []
    spread = 0.0
    for distance in (0, 3, 7):
        scores = [score(j + distance, j) for j in shifts]
        means.append(scores[0])
        spread = max(spread, max(scores) - min(scores))
        lines.append(f"i - j = {distance}: {', '.join(f'{s:.9f}' for s in scores)}")
    between = max(means) - min(means)
    single = [score(j + 3, j, torch.float32) for j in shifts]
    coarse = max(single) - min(single)
    # angles of up to 100,000 have an absolute rounding error of 1e-11 in float64
    holds = spread < 1e-9 and between > 1e-3
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=say(
            "Moved by up to {most} positions, scores change by at most {spread}; another "
            "distance changes them by up to {between}.",
            most=f"{max(shifts):,}",
            spread=f"{spread:.0e}",
            between=f"{between:.2g}",
        ),
        correct=say("a function of i - j" if holds else "not a function of i - j alone"),
        computation=(
            say(
                "one head of width {width}, float64; j = {shifts}",
                width=head_dim,
                shifts=", ".join(f"{j:,}" for j in shifts),
            ),
            *lines,
            say("i - j = 3 in float32: {scores}", scores=", ".join(f"{s:.6f}" for s in single)),
            say(
                "one pair of columns as a complex number, ι² = -1: {equation}",
                equation="q·e^(ι·i·θ)·conj(k·e^(ι·j·θ)) = q·conj(k)·e^(ι·(i - j)·θ)",
            ),
        ),
        values={"coarse": f"{coarse:.0e}", "grows": coarse > spread},
        witness=WITNESS,
    )


def sinusoids(claim: Claim) -> Finding:
    """Judge whether the table of positions is sin and cos of pos/10000^(2i/d).
    Options: `style` of the table.
    """
    d, positions = 16, (0, 1, 2, 50, 1000)
    at = torch.tensor(positions)
    stated = torch.tensor(
        [
            [(math.sin, math.cos)[c % 2](p / 10000 ** ((c - c % 2) / d)) for c in range(d)]
            for p in positions
        ],
        dtype=torch.float64,
    )
    tables = {style: sinusoid(at, d, style=style) for style in ("alternating", "halves")}
    off = {style: unequal(table, stated) for style, table in tables.items()}
    # the same waves, all sines before all cosines
    moved = unequal(tables["halves"], torch.cat((stated[:, 0::2], stated[:, 1::2]), dim=-1))
    halves = torch.tensor(
        [
            [
                wave(p / 10000 ** (i / (d // 2 - 1)))
                for wave in (math.sin, math.cos)
                for i in range(d // 2)
            ]
            for p in positions
        ],
        dtype=torch.float64,
    )
    own = unequal(tables["halves"], halves)
    by = off[claim.options["style"]]
    holds = by < ROUNDING  # sin of 1,000 radians has a rounding error of 1e-13 in float64
    rows: tuple[Words, ...] = tuple(
        say(
            "position {p}, columns 0 to 3: {values}",
            p=p,
            values=", ".join(f"{v:.6f}" for v in tables["alternating"][n, :4].tolist()),
        )
        for n, p in enumerate(positions)
    )
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=say(
            "At {n} positions up to {most} and d = {d} the module's table is {that} of the "
            "formula, to {off}.",
            n=len(positions),
            most=f"{positions[-1]:,}",
            d=d,
            that=say("that" if holds else "not that"),
            off=f"{by:.1g}",
        ),
        correct=say("as stated" if holds else "something else"),
        computation=(
            *rows,
            say(
                "sines and cosines by turns, against the formula: off by {off}",
                off=f"{off['alternating']:.1g}",
            ),
            say(
                "all sines before all cosines, against the formula: off by {off}; with its columns "
                "in that order: off by {moved}",
                off=f"{off['halves']:.2g}",
                moved=f"{moved:.2g}",
            ),
            say(
                "all sines before all cosines, against {formula}: off by {off}",
                formula="10000^(i/(d/2 - 1))",
                off=f"{own:.1g}",
            ),
        ),
        values={
            "halves_differ": moved > ROUNDING,
            "halves_own": own < ROUNDING,
            "moved": f"{moved:.2g}",
        },
        witness=WITNESS,
    )
