"""Measures transformers' own multi-token-prediction modules of a model.

transformers leaves their weights out when it loads a model, and makes the modules apart from it
when they are to draft tokens; older versions have none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from metacount.huggingface.module.model import built_quietly
from metacount.measure.counter import FlopCounter, MeasuredParams
from metacount.measure.theirs import (
    ClassBook,
    Ordinary,
    Roles,
    as_it_runs,
    measure_any_params,
    quiet,
    routing,
    text_config,
)
from metacount.measure.transformers_private import run_prediction
from metacount.spec import Workload

COUNT = "num_mtp_layers"


def prediction_modules(main: Any, dtype: torch.dtype) -> tuple[nn.Module | None, str]:
    """Make the prediction modules that transformers has for a model on meta; else None, and why."""
    n_modules = getattr(text_config(main.config), COUNT, None)
    if not n_modules:
        return None, ""
    try:
        from transformers.modeling_layers import MtpModel
    except ImportError:
        return None, "this version of transformers makes no prediction modules"
    try:
        return built_quietly(lambda _: MtpModel(main, n_modules), main.config, dtype), ""
    except Exception as error:  # whatever somebody else's code raises
        said = " ".join(str(error).split())[:160] or type(error).__name__
        return None, f"transformers makes no prediction modules: {said}"


def prediction_params(modules: nn.Module) -> MeasuredParams:
    """Count the parameters of prediction modules, without the embedding and head they share."""
    return measure_any_params(modules.get_submodule("layers"), Roles(modules))


def prediction_flops(modules: nn.Module, workload: Workload) -> tuple[int | None, str]:
    """Count the FLOPs of a forward of prediction modules, head included; else None, and why."""
    roles = Roles(modules)
    roles.routed = routing(modules)[0]
    try:
        counted, _ = as_it_runs(modules, lambda: _ran(modules, workload, roles))
    except Exception as error:  # likewise: the parameters still stand
        return None, f"prediction modules not run: {' '.join(str(error).split())[:160]}"
    return sum(counted.by_role().values()) - counted.beside(idle=True), ""


def _ran(modules: Any, workload: Workload, roles: Roles) -> FlopCounter:
    """Read as many hidden states and tokens as the workload has, in every module in turn."""
    batch, length = workload.batch_size, workload.seq_len
    counter = FlopCounter(ClassBook(roles, Ordinary(length - 1)))
    width, like = modules.config.hidden_size, next(modules.parameters())
    hidden = torch.empty(batch, length, width, device="meta", dtype=like.dtype)
    tokens = torch.empty(batch, length, device="meta", dtype=torch.long)
    with quiet(), counter.watching(modules):
        run_prediction(modules, hidden, tokens)
    return counter
