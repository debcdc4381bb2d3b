"""transformers' own modules in float64 throughout, to be compared with ours to 1e-10.

A float64 model of transformers still computes in float32 the rotary frequencies and tables, the
mean square of RMSNorm, the softmax of attention and the scores of routers: its code says `.float()`
or `dtype=torch.float32` there, so that bf16 models keep precision. Two such models that do the same
mathematics agree to 1e-5 only. `Float64` reads every float32 in a call as float64, while a model is
built (frequencies) and while it runs, and `.bfloat16()` (Falcon's ALiBi) likewise.
It also reads 0.79788456 in BLOOM's GELU and 0.7978845608 in `gelu_fast` as sqrt(2/pi), of which
these are eight and ten digits, and 0.1070322243 in BLOOM's gradient as 3·0.044715·sqrt(2/pi): 3e-10
in logits and gradients. Griffin's bound on the derivative of a square root is lifted, which ours
does not have: 1e-6 in gradients where a state hardly decays. `.float()` gives a contiguous tensor,
as it does of a bf16 one: DeepSeek-V2 relies on it (`view_as_complex`). Nothing else is changed.
"""

from __future__ import annotations

import copy
import functools
import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from metacount.huggingface.module.model import choose_class, config_class
from metacount.verify.forward import randomise as randomise

ROOT = math.sqrt(2 / math.pi)
DIGITS = {0.79788456: ROOT, 0.7978845608: ROOT, 0.1070322243: 3 * 0.044715 * ROOT}


class Float64(TorchFunctionMode):
    """`.float()` and `.bfloat16()` are `.double()`; `torch.float32` as an argument is `float64`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        wide = {k: _wider(v) for k, v in (kwargs or {}).items()}
        if func in (Tensor.float, Tensor.bfloat16):
            return args[0].double().contiguous()
        return func(*map(_wider, args), **wide)


def _wider(value: Any) -> Any:
    if type(value) is float and value in DIGITS:
        return DIGITS[value]
    return torch.float64 if value is torch.float32 else value


def build_in_float64(config: dict[str, Any], seed: int = 0, *, attention: str = "eager") -> Any:
    """transformers' module of a config, on CPU in float64, with random weights, seeded."""
    model_type, architectures = config["model_type"], config.get("architectures")
    chosen, _ = choose_class(model_type, architectures, remote=False)
    if model_type == "bloom":
        _exact_backward(sys.modules[chosen.__module__])
    if model_type == "recurrent_gemma":
        sys.modules[chosen.__module__]._MAX_SQRT_GRADIENT = math.inf
    keys = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
    logger = logging.getLogger("transformers")  # it wonders at end tokens outside a tiny vocabulary
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with in_float64():
            made = config_class(model_type)(**copy.deepcopy(keys))
            made._attn_implementation = attention
            made._experts_implementation = "eager"  # the fused product knows no float64
            module = chosen(made).to(torch.float64).eval()
    finally:
        logger.setLevel(level)
    randomise(module, seed)
    return module


def _exact_backward(bloom: Any) -> None:
    """No mode reaches into BLOOM's backward of its own, so the mode is entered there."""
    back = bloom.bloom_gelu_back
    if not hasattr(back, "__wrapped__"):

        @functools.wraps(back)
        def exact(*tensors: Tensor) -> Tensor:
            with Float64():
                result: Tensor = back(*tensors)
            return result

        bloom.bloom_gelu_back = exact


@contextmanager
def in_float64() -> Iterator[None]:
    """What is made and run here is made and run in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Float64():
            yield
    finally:
        torch.set_default_dtype(before)
