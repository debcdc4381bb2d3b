"""The transformers witness: what transformers' own module shows, in the words of `check`.

It imports no formula and none of our modules: it shares no code with the other witnesses but the
prices of operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from metacount.figures import BREAKDOWNS, QUANTITIES, Witness
from metacount.huggingface.module.model import (
    ClassChoice,
    build_transformers,
    built_quietly,
    version,
)
from metacount.measure.counter import FlopCounter, MeasuredParams, MeasuredRun
from metacount.measure.operators import UncountedOp
from metacount.measure.theirs import (
    KEEPS_GIVEN,
    ClassBook,
    NeedsData,
    Ordinary,
    Roles,
    as_it_runs,
    lacks_data,
    measure_any_forward,
    measure_any_params,
    quiet,
    routing,
    text_config,
)
from metacount.measure.transformers_private import run_prediction
from metacount.spec import DTYPE_BYTES, Workload
from metacount.tensors import DTYPES
from metacount.units import exact

if TYPE_CHECKING:
    from transformers.configuration_utils import PreTrainedConfig

    from metacount.files import Json


KV_HEADS = ("num_key_value_heads", "num_kv_heads")
# Buffers that our spec knows; others are named in the detail.
KNOWN_BUFFERS = ("selection_bias", "layer_scalar", "token_experts")
# A tower -> the words before _config of what it is built from.
TOWERS = {"vision": ("vision", "image"), "audio": ("audio", "speech", "encoder")}


def transformers_witness(source: str | Json | PreTrainedConfig, workload: Workload) -> Witness:
    """Return what transformers' module of a config (or model type) says of `workload`.

    Raises `SpecError` for a config that builds no model. A model that cannot be run has an opinion
    on parameters alone; the detail says why.
    """
    return module_witness(*build_transformers(source, dtype=run_dtype(workload)), workload)[0]


def run_dtype(workload: Workload) -> torch.dtype:
    """Choose the dtype a module is built in to run `workload`: no module runs in fp8 or int8."""
    return DTYPES.get(workload.dtype, torch.bfloat16)


def module_witness(
    module: nn.Module, choice: ClassChoice, workload: Workload
) -> tuple[Witness, MeasuredRun | None]:
    """Return what a module that `build_transformers` made, in `run_dtype`, says of `workload`, and
    the run; None where it cannot be run.
    """
    dtype = workload.dtype if workload.dtype in DTYPES else "bf16"
    roles = Roles(module)
    measured = measure_any_params(module, roles)
    try:
        run, failure = measure_any_forward(module, workload, roles), ""
    except Exception as error:
        # whatever somebody else's forward raises: the parameters still stand
        run, failure = None, shortfall(error)
    figures: dict[str, int | None] = dict.fromkeys(QUANTITIES)
    parts: dict[str, dict[str, int] | None] = dict.fromkeys(BREAKDOWNS)
    figures["params"] = measured.params
    figures["active_params"] = measured.active_params
    figures["active_params_no_embed"] = measured.no_embed
    if measured.text_params != measured.params:
        figures["text_params"] = measured.text_params
        figures["text_active_params"] = measured.text_active_params
        figures |= _tower_params(module)
    parts["by_role"], parts["active_by_role"] = measured.by_role, measured.active_by_role
    known = {name: measured.buffers.get(name, 0) for name in KNOWN_BUFFERS}
    parts["buffers"] = {name: n for name, n in known.items() if n or name == KNOWN_BUFFERS[0]}
    details = [_who(choice), *_param_details(measured)]
    if run is None:
        details.append(f"forward not measured: {failure}")
    else:
        details += _run_figures(module, run, workload, dtype, figures, parts)
    details += _predicted(module, workload, figures, parts)
    detail = "; ".join(details)
    return Witness(name="transformers", figures=figures, parts=parts, detail=detail), run


def _predicted(
    module: nn.Module,
    workload: Workload,
    figures: dict[str, int | None],
    parts: dict[str, dict[str, int] | None],
) -> list[str]:
    modules, why = prediction_modules(module, run_dtype(workload))
    if modules is None:
        return [why] if why else []
    params = prediction_params(modules)
    figures["mtp_params"], parts["mtp_by_role"] = params.params, params.by_role
    figures["mtp_active_params"] = params.active_params
    figures["mtp_matmul_flops"], why = prediction_flops(modules, workload)
    return [why] if why else []


def shortfall(error: Exception) -> str:
    """Say why a forward was not measured, in one line."""
    text = " ".join(str(error).split())[:160]
    if isinstance(error, UncountedOp | NeedsData):
        return text
    if lacks_data(error):
        # a meta kernel that needs data, such as a choice by mask; torch's own words say which
        return f"its code cannot run without data: {text}"
    return f"transformers' forward fails: {type(error).__name__}: {text}"


def _tower_params(module: nn.Module) -> dict[str, int | None]:
    figures: dict[str, int | None] = {}
    for name, words in TOWERS.items():
        configs = [getattr(module.config, f"{word}_config", None) for word in words]
        own = {id(config) for config in configs if config is not None}
        tensors = {
            id(parameter): parameter.numel()
            for part in module.modules()
            if id(getattr(part, "config", None)) in own
            for parameter in part.parameters()
        }
        if tensors:
            figures[f"{name}_params"] = sum(tensors.values())
    return figures


def _who(choice: ClassChoice) -> str:
    return f"transformers {version()}, torch {torch.__version__}, on meta: {choice}"


def _param_details(measured: MeasuredParams) -> list[str]:
    details = []
    if measured.text_params not in (None, measured.params):
        details.append(
            f"the text model has {exact(measured.text_params)} of the parameters (text_params); "
            "FLOPs and caches are of text alone: the other towers, which active_params counts and "
            "text_active_params does not, are not run"
        )
    others = {name: n for name, n in measured.buffers.items() if name not in KNOWN_BUFFERS}
    if others:
        details.append("buffers " + ", ".join(f"{name} {exact(n)}" for name, n in others.items()))
    if measured.unclaimed:
        first = ", ".join(measured.unclaimed[:3])
        more = f" and {len(measured.unclaimed) - 3} more" if len(measured.unclaimed) > 3 else ""
        details.append(f"in `other` because no module claims a role: {first}{more}")
    if measured.unknown_routing:
        details.append(f"no number of experts per token is known for {measured.unknown_routing[0]}")
    return details


def _run_figures(
    module: nn.Module,
    run: MeasuredRun,
    workload: Workload,
    dtype: str,
    figures: dict[str, int | None],
    parts: dict[str, dict[str, int] | None],
) -> list[str]:
    figures["matmul_flops"] = run.prefill.matmul_flops - run.prefill.idle
    parts["matmul_flops_by_role"] = run.prefill.chosen_by_role
    details = list(run.assumed)
    if run.prefill.rotary:
        details.append(
            f"without {exact(run.prefill.rotary)} FLOPs of rotary tables: "
            f"{exact(run.prefill.all_flops)} with them"
        )
    if run.prefill.idle:
        total, idle = exact(run.prefill.matmul_flops), exact(run.prefill.idle)
        details.append(
            f"its code runs experts on tokens that did not choose them: without {idle} "
            f"FLOPs, {total} with them; active_params counts the chosen ones"
        )
    latent = _is_latent(module)
    if run.decode is not None and not latent:
        figures["decode_matmul_flops"] = run.decode.matmul_flops - run.decode.idle
        parts["decode_matmul_flops_by_role"] = run.decode.chosen_by_role
    elif run.decode is not None:
        details.append(
            f"no opinion on decode: its code expands every cached latent, "
            f"{exact(run.decode.matmul_flops)} FLOPs"
        )
    if run.kind == "encoder":
        # an encoder, or a decoder's body: what cannot generate is not asked for a cache
        return [*details, "no opinion on decode and cache: its class does not generate"]
    if run.cache is None or run.kv_bytes_per_token is None:
        return [*details, f"no cache measured: {run.no_cache}"]
    scale, unit = DTYPE_BYTES[workload.dtype], DTYPE_BYTES[dtype]
    if run.cache.key_heads > _kv_heads(module, latent):
        details.append(
            f"no opinion on the KV cache: its code caches expanded keys and values, "
            f"{exact(run.cache.kv_bytes // unit * scale)} bytes"
        )
    else:
        figures["kv_cache_bytes_per_token"] = run.kv_bytes_per_token // unit * scale
        figures["kv_cache_bytes"] = run.cache.kv_bytes // unit * scale
        figures["cross_kv_cache_bytes"] = run.cache.cross_kv_bytes // unit * scale
    if type(module).__name__ in KEEPS_GIVEN:
        details.append("no opinion on the recurrent state: its code keeps it in its modules")
    elif workload.dtype in DTYPES:  # a state may be of another dtype, which is not priced anew
        figures["state_bytes"] = run.cache.state_bytes
    if run.cache.state_bytes:
        details.append(f"recurrent state {exact(run.cache.state_bytes)} bytes, not in the KV cache")
    return details


def _is_latent(module: nn.Module) -> bool:
    config = text_config(module.config)
    return getattr(config, "kv_lora_rank", None) is not None


def _kv_heads(module: nn.Module, latent: bool) -> int:
    """Find how many heads attention's own modules say they keep keys of;
    1 if `latent`, no limit if none says.
    """
    if latent:
        return 1
    numbers = [getattr(m, name, None) for m in module.modules() for name in KV_HEADS]
    return max((n for n in numbers if isinstance(n, int)), default=2**31)


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
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        return None, f"transformers makes no prediction modules: {reason}"


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
    return sum(counted.by_role().values()) - counted.other_flops(idle=True), ""


def _ran(modules: Any, workload: Workload, roles: Roles) -> FlopCounter:
    batch, length = workload.batch_size, workload.seq_len
    counter = FlopCounter(ClassBook(roles, Ordinary(length - 1)))
    width, like = modules.config.hidden_size, next(modules.parameters())
    hidden = torch.empty(batch, length, width, device="meta", dtype=like.dtype)
    tokens = torch.empty(batch, length, device="meta", dtype=torch.long)
    with quiet(), counter.watching(modules):
        run_prediction(modules, hidden, tokens)
    return counter
