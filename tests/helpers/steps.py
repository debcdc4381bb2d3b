"""A step of training by formulas, and the same step measured."""

from __future__ import annotations

from typing import Any

from metacount import Setup, Workload
from metacount.formulas.step import tensors_by_path
from metacount.modules.build import build
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention, LatentAttention, NoAttention
from metacount.summary.training_step import reference_training
from metacount.textbook.training import COMPARED, TrainingCount, count_step
from metacount.training.setup import Training
from metacount.verify.subject import subject_in_hand

BY_ROLE = ("matmul_flops", "backward_matmul_flops", "recompute_matmul_flops", "activation_bytes")


def workload(spec: ModelSpec, batch_size: int, seq_len: int, dtype: str = "bf16") -> Workload:
    source = 7 if spec.has_encoder else None
    prefix = 1 if spec.kind == "prefix-decoder" else 0
    return Workload(
        batch_size=batch_size, seq_len=seq_len, source_len=source, prefix_len=prefix, dtype=dtype
    )


class Uncovered(Exception):
    """A step of which a figure has no formula."""


def both(spec: ModelSpec, work: Workload, setup: Setup) -> tuple[TrainingCount, Training]:
    """A step by formulas, `Uncovered` where one of its figures has none; and measured."""
    counted = count_step(spec, work, setup)
    if counted.activation_bytes is None:
        raise Uncovered(counted.uncovered["activation_bytes"])
    subject = subject_in_hand(build(spec, dtype=work.dtype), "", work)
    return counted, reference_training(subject, setup)


def differing(counted: TrainingCount, found: Training) -> dict[str, tuple[Any, Any]]:
    """The figures that differ: by formula, and measured."""
    names = (*COMPARED, "params", "trainable_params", *(f"{name}_by_role" for name in BY_ROLE))
    pairs = {name: (getattr(counted, name), getattr(found, name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def compare(
    spec: ModelSpec, sizes: tuple[int, int] = (2, 5), dtype: str = "bf16", **choices: Any
) -> None:
    """Count and measure a step of `sizes`, batch and tokens: all figures are equal."""
    setup = Setup(**{"optimizer": "sgd", **choices})
    assert differing(*both(spec, workload(spec, *sizes, dtype), setup)) == {}


def all_but(spec: ModelSpec, *names: str) -> tuple[str, ...]:
    """What is frozen where the tensors with one of `names` in their paths alone are trained.

    A dot stands before and behind each path, so that a name may be a whole one.
    """
    paths = tensors_by_path(spec)
    found = tuple(path for path in paths if not any(name in f".{path}." for name in names))
    assert len(found) < len(paths), f"no tensor is called {names}"
    return found


def without_formula(spec: ModelSpec, attention: str) -> bool:
    """Whether what such a step keeps has no formula: the kernel does not compute this attention."""
    part = spec.last_stack.attention
    if spec.last_stack.altup is not None:
        return True
    if attention == "eager" or isinstance(part, NoAttention):
        return False
    sinks = isinstance(part, Attention) and (part.sinks or part.of_layer(True).sinks)
    if part.softcap or sinks or part.indexer is not None:
        return True
    if attention == "sdpa":
        return False
    if isinstance(part, LatentAttention):  # values of one number, or wider than the keys
        keys = part.qk_nope_head_dim + part.qk_rope_head_dim
        if part.v_head_dim == 1 or part.v_head_dim > keys:
            return True
    if isinstance(part, Attention) and part.v_head_dim is not None:
        near = part.of_layer(True)
        if part.v_head_dim > min(part.head_dim, near.head_dim) or part.v_head_dim == 1:
            return True
    masked = spec.kind == "prefix-decoder" or spec.window_kind == "chunked"
    return masked or spec.position in ("alibi", "t5", "transformer_xl")
