"""Where a tool's bytes of training differ from those measured, as far as arithmetic shows it.

Each part is bytes more or fewer than measured and what they are. A part is written down as it
follows from what the tool documents and from the sizes of the setting; what is left of the
difference when all parts are taken off is not accounted for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Part = tuple[int, str]
Figures = dict[str, int]


def difference(
    tool: str, name: str, setting: dict[str, Any], truth: Figures, said: Figures
) -> list[Part]:
    """The parts of a difference, and last what is not accounted for, where that is not 0."""
    parts = []
    if (tool, name) in PARTS:
        parts = [each for each in PARTS[tool, name](setting, truth, said) if each[0]]
    left = said[name] - truth[name] - sum(n_bytes for n_bytes, _ in parts)
    return [*parts, (left, "not accounted for")] if left else parts


def _held(setting: dict[str, Any], truth: Figures) -> int:
    """Parameters whose optimizer state the rank holds."""
    if "gathered_bytes" in truth:
        return truth["param_bytes"] // 4  # float32
    return truth["params"]


def _counters(setting: dict[str, Any], truth: Figures) -> Part:
    """AdamW's state holds two values a parameter and a counter of steps a tensor."""
    width = 4 if setting["master"] or setting["dtype"] == "fp32" else 2
    left = truth["optimizer_bytes"] - 2 * width * _held(setting, truth)
    return (-left, "no counter of steps, 4 bytes a tensor")


def _accelerate(setting: dict[str, Any], truth: Figures, said: Figures) -> list[Part]:
    # float32: weights, gradients, two moments; 16 bits: the moments alone are its largest stage
    its = 16 if setting["dtype"] == "fp32" else 8
    measured = sum(truth.get(name, 0) for name in _STORED) + 8 * truth["params"]
    each = measured // truth["params"]
    missing = said["params"] - truth["params"]
    return [
        (its * missing, f"{missing:+,} parameters, {its} bytes each"),
        ((its - each) * truth["params"], f"{its} bytes a parameter, not {each}"),
        _counters(setting, truth),
        (-truth.get("buffer_bytes", 0), "no buffers"),
    ]


def _deepspeed(setting: dict[str, Any], truth: Figures, said: Figures) -> list[Part]:
    params, ranks = said["params"], setting["dp"]
    missing = params - truth["params"]
    share = 16 * truth["params"] // ranks
    return [
        (18 * params // ranks - 16 * params // ranks, "18 bytes a parameter to share, not 16"),
        (16 * params // ranks - share, f"{missing:+,} parameters"),
        (share - 16 * _held(setting, truth), "no tensor that divides unevenly"),
        _counters(setting, truth),
    ]


def _megatron(setting: dict[str, Any], truth: Figures, said: Figures) -> list[Part]:
    if "gathered_bytes" not in truth:
        return [_counters(setting, truth), (-truth.get("buffer_bytes", 0), "no buffers")]
    ranks, held = setting["dp"], _held(setting, truth)
    norms = {
        "last_norm": "a share of the last norm, which is on the last stage",
        "query_norms": "no norms of queries and keys",
    }
    found = [(6 * said[name] + 12 * said[name] // ranks, text) for name, text in norms.items()]
    if setting["ep"] == 1:
        whole = truth["gathered_bytes"] // 2  # bf16
        found.append((12 * whole // ranks - 12 * held, "no tensor that divides unevenly"))
    return [*found, _counters(setting, truth)]


def _shared_out(setting: dict[str, Any], truth: Figures, said: Figures) -> list[Part]:
    if setting["zero"] != 1:
        return []
    whole = truth["gradient_bytes"] - 4 * _held(setting, truth)
    return [(-whole, "gradients as shares: FSDP2 keeps none whole after a backward")]


def _tokens(setting: dict[str, Any], truth: Figures, said: Figures) -> list[Part]:
    ids = 8 * setting["seq"]
    on_mesh = "gathered_bytes" in truth
    return [
        (-ids, "the token ids, which it counts as inputs"),
        # transformers makes shifted ones, which are new
        (-ids if on_mesh else 0, "the targets, which it counts as inputs"),
        (4, "the loss itself"),
    ]


_STORED = ("param_bytes", "master_weight_bytes", "gradient_bytes")
PARTS: dict[tuple[str, str], Callable[[dict[str, Any], Figures, Figures], list[Part]]] = {
    ("accelerate", "states"): _accelerate,
    ("deepspeed", "states"): _deepspeed,
    ("megatron-lm", "states"): _megatron,
    ("torch tracker", "states"): _shared_out,
    ("torch tracker", "activations"): _tokens,
}
