"""A step of training by formulas, and the same step measured."""

from __future__ import annotations

from metacount import Setup, Workload
from metacount.modules.build import build
from metacount.spec import ModelSpec
from metacount.summary.training_step import train_reference
from metacount.textbook.training import TrainingCount
from metacount.textbook.training.chosen import COMPARED, count_step
from metacount.training.result import Training

BY_ROLE = ("matmul_flops", "backward_matmul_flops", "recompute_matmul_flops")


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
    return counted, train_reference(build(spec, dtype=work.dtype), ("", ""), work, setup)


def assert_equal(counted: TrainingCount, found: Training) -> None:
    for name in COMPARED:
        assert getattr(counted, name) == getattr(found, name), name
    for name in BY_ROLE:
        assert getattr(counted, f"{name}_by_role") == getattr(found, f"{name}_by_role"), name
    assert counted.params == found.params
    assert counted.trainable_params == found.trainable_params
