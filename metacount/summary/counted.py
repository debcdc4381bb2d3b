"""A training step of a model in any form, counted by formulas: nothing is built, nothing runs."""

from __future__ import annotations

from metacount.formulas.model import params
from metacount.given import check_size
from metacount.resolve import model_of
from metacount.spec import Request
from metacount.textbook.count import fitted
from metacount.textbook.training import count_step
from metacount.training.setup import Setup, check_dtypes

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.resolve import Given
    from metacount.spec import Workload
    from metacount.textbook.training import TrainingCount


def count_training(
    model: Given, workload: Workload | Request | None = None, setup: Setup | None = None
) -> TrainingCount:
    """Count one training step of a model by formulas alone, without torch; `train` measures it.

    What has no formula is None, and `uncovered` says why.

    >>> step = count_training("llama-7b")
    >>> step.backward_matmul_flops, step.activation_bytes, step.optimizer_bytes
    (58523224375296, 39605280772, 26953663628)
    """
    spec, chosen = model_of(model).spec, setup or Setup()
    run = fitted(spec, workload or Request())
    check_dtypes(chosen, run.dtype)
    step = count_step(spec, run, chosen)
    check_size(model, params(spec))  # a sum over what the step has recorded
    return step
