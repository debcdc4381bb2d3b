"""Parameters of a module that is not ours: distinct tensors, roles, what one token uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from metacount.measure.others.roles import Roles, role_name, text_config, told
from metacount.measure.result import MeasuredParams
from metacount.measure.roles import BUFFERS, ROLES
from metacount.measure.torch_private import parameters_of, stored_buffers_of

WHOLE: Any = (int, torch.SymInt)  # a number, or the symbol that stands for one

# Where a module says how many experts there are, and how many of them a token meets.
EXPERT_COUNTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "n_experts",
    "num_total_experts",
)
CHOSEN_COUNTS = (
    "top_k",
    "topk",
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_top_k",
    "moe_topk",
    "num_selected_experts",
    "top_k_experts",
    "k",
    "moe_k",
)
# What a model says itself of the tables that tokens look up: one, or each layer's own beside it.
TABLES = ("get_input_embeddings", "get_per_layer_input_embeddings")
# Routers whose number of chosen experts is in their name and nowhere else.
CHOSEN_BY_CLASS = {"SwitchTransformersTop1Router": 1, "NllbMoeTop2Router": 2}


def distinct_tensors(root: nn.Module, roles: Roles) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Yield (full name, owner, tensor), every tensor once; a tied one belongs to the embedding."""
    found: dict[int, tuple[str, nn.Module, Tensor]] = {}
    for path, module in root.named_modules():
        for name, tensor in parameters_of(module).items():
            if id(tensor) in found and roles.role[id(module)] != "embedding":
                continue
            found[id(tensor)] = (f"{path}.{name}" if path else name, module, tensor)
    yield from found.values()


def measure_any_params(model: nn.Module, roles: Roles | None = None) -> MeasuredParams:
    """Count every distinct parameter and persistent buffer of transformers' `model`."""
    roles = Roles(model) if roles is None else roles
    routed, unknown = routing(model)
    by_role, active = dict.fromkeys(ROLES, 0), dict.fromkeys(ROLES, 0)
    unclaimed: list[str] = []
    text, of_text = _text_tensors(model), [0, 0]
    for path, owner, tensor in distinct_tensors(model, roles):
        role = roles.role[id(owner)]
        if role is None:
            unclaimed.append(f"{path} {tuple(tensor.shape)}")
        key, values = role_name(role), tensor.numel()
        by_role[key] += values
        chosen, n_experts = routed.get(id(tensor), (1, 1))
        active[key] += values // n_experts * chosen
        if id(tensor) in text:
            of_text = [of_text[0] + values, of_text[1] + values // n_experts * chosen]
    table = _lone_token_table(model)
    return MeasuredParams(
        by_role=by_role,
        active_by_role=None if unknown else active,
        no_embed=None if unknown else sum(active.values()) - table,
        buffers=_buffers(model),
        unclaimed=tuple(unclaimed),
        unknown_routing=tuple(unknown),
        text_params=of_text[0],
        text_active_params=None if unknown else of_text[1],
    )


def _buffers(model: nn.Module) -> dict[str, int]:
    """Count the values of persistent buffers by name.
    Tables that a run makes anew are not stored.
    """
    found: dict[str, int] = {}
    seen: set[int] = set()
    for module in model.modules():
        for name, buffer in stored_buffers_of(module).items():
            if id(buffer) not in seen:
                seen.add(id(buffer))
                kind = BUFFERS.get(name, name)
                found[kind] = found.get(kind, 0) + buffer.numel()
    return found


def _lone_token_table(model: nn.Module) -> int:
    """Count the values of the tables that tokens look up and that no output head shares."""
    heads = {
        id(p)
        for module in model.modules()
        if hasattr(module, "get_output_embeddings")
        for p in getattr(_asked(module, "get_output_embeddings"), "_parameters", {}).values()
    }
    tables: dict[int, int] = {}
    for module in model.modules():
        for question in TABLES:
            table = getattr(_asked(module, question), "weight", None)
            if isinstance(table, nn.Parameter) and table.dim() == 2 and id(table) not in heads:
                tables[id(table)] = table.numel()
    return sum(tables.values())


def _asked(module: nn.Module, question: str) -> nn.Module | None:
    return told(module, question) if hasattr(module, "config") else None


def _text_tensors(model: nn.Module) -> set[int]:
    """Return the ids of the text model's parameters, its head's included; all of a plain one."""
    config = getattr(model, "config", None)
    text = text_config(config)
    parts = [
        module
        for module in model.modules()
        if getattr(module, "config", None) is text and hasattr(module, "post_init")
    ]
    head = _asked(model, "get_output_embeddings")
    if text is config:
        parts = [model]
    elif head is not None:
        parts.append(head)
    return {id(p) for module in parts for p in module.parameters()}


def routing(model: nn.Module) -> tuple[dict[int, tuple[int, int]], list[str]]:
    """Find (experts per token, experts) of each routed tensor, by its id,
    and the modules whose k is unknown.
    """
    routed: dict[int, tuple[int, int]] = {}
    unknown: list[str] = []
    parents = {id(child): module for module in model.modules() for child in module.children()}
    for path, module in model.named_modules():
        listed, fused = _listed(path, module), _fused(path, module)
        if not listed and fused is None:
            continue
        chosen = _chosen(module, parents, model)
        if chosen is None:
            unknown.append(path)
        elif fused is not None:
            for tensor in fused[1]:
                # rows of experts one after the other, or stacked: each its own number of them
                n_experts = tensor.shape[0] if tensor.dim() > 2 else fused[0]
                routed[id(tensor)] = (min(chosen, n_experts), n_experts)
        else:
            # experts of one size: which of them are met does not matter
            for i, expert in enumerate(listed):
                for tensor in expert.parameters():
                    routed[id(tensor)] = (int(i < chosen), 1)
    return routed, unknown


def _listed(path: str, module: nn.Module) -> list[nn.Module]:
    """List the experts in a list of modules; none where they differ in size."""
    if path.rpartition(".")[2] != "experts" or not isinstance(
        module, nn.ModuleList | nn.ModuleDict
    ):
        return []
    experts = [m for m in module.children() if any(True for _ in m.parameters())]
    sizes = [sum(p.numel() for p in expert.parameters()) for expert in experts]
    return experts if len(experts) > 1 and all(size == sizes[0] for size in sizes) else []


def _fused(path: str, module: nn.Module) -> tuple[int, list[Tensor]] | None:
    """Return the number of experts whose tensors a module holds as one,
    and these tensors; None if none.
    """
    own = [p for p in parameters_of(module).values() if p.numel()]
    told = [getattr(module, name, None) for name in EXPERT_COUNTS]
    counts: list[int] = [n for n in told if isinstance(n, WHOLE) and n > 1]
    stacked = [p for p in own if p.dim() >= 3]
    named = path.rpartition(".")[2] == "experts"
    if stacked and (named or (counts and any(p.shape[0] == counts[0] for p in stacked))):
        n_experts = counts[0] if counts else stacked[0].shape[0]
        # a bias [E, n] goes with its matrix; anything else of the module is used whole
        return n_experts, [p for p in own if p.dim() >= 3 or p.shape[0] == n_experts]
    if counts and type(module).__name__.endswith("ExpertGLU"):
        # the experts' rows one after the other (DBRX)
        return counts[0], [p for p in own if p.shape[0] % counts[0] == 0]
    return None


def _chosen(module: nn.Module, parents: dict[int, nn.Module], model: nn.Module) -> Any:
    """Find the number of experts per token:
    of the module, its holder, a router beside it, or the config.
    """
    asked: list[nn.Module] = [module]
    holder = parents.get(id(module))
    for _ in range(2):
        if holder is None or hasattr(holder, "post_init"):
            break
        asked += [holder, *(c for c in holder.children() if c is not module)]
        holder = parents.get(id(holder))
    for one in asked:
        if type(one).__name__ in CHOSEN_BY_CLASS:
            return CHOSEN_BY_CLASS[type(one).__name__]
        for name in CHOSEN_COUNTS:
            value = getattr(one, name, None)
            if isinstance(value, WHOLE) and not isinstance(value, bool) and value > 0:
                return value
    for config in (getattr(module, "config", None), text_config(model.config)):
        for name in CHOSEN_COUNTS:
            value = getattr(config, name, None)
            if isinstance(value, WHOLE) and not isinstance(value, bool) and value > 0:
                return value
    return None
