"""transformers' own module placed by its own plans, `base_model_tp_plan` and the others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from metacount.errors import InputError
from metacount.huggingface.module.model import build_transformers
from metacount.measure.others.params import routing
from metacount.measure.others.quiet import quiet
from metacount.measure.others.roles import Roles, role_name
from metacount.measure.others.transformers_private import distribute
from metacount.measure.torch_private import forget_ranks
from metacount.sharding.adding import Piece, kind_from
from metacount.sharding.engine.alike import alike, tensor_breaks
from metacount.sharding.engine.optimizer import state_bytes
from metacount.sharding.engine.world import device_mesh, fake_world
from metacount.sharding.mesh import Mesh, ranges
from metacount.sharding.result import Held, Job, Kind
from metacount.tensors import DTYPES

if TYPE_CHECKING:
    from transformers.distributed.configuration_utils import DistributedConfig
    from transformers.distributed.utils import TransformersDeviceMesh

    from metacount.files import Json

AXES = {"tp": ("pp", "dp_replicate", "fsdp", "tp"), "ep": ("pp", "dp_replicate", "efsdp", "ep")}


def placed_kinds(config: Json, job: Job) -> list[Kind]:
    """Place transformers' module, and list every kind of rank of a mesh; nothing is run."""
    _check(job)
    config = dict(config)
    held: dict[int, list[Held]] = {}

    def held_at(rank: int) -> list[Held]:
        if rank not in held:
            held[rank] = _held(config, job, rank)
        return held[rank]

    forget_ranks()
    groups = alike(held_at, job, tensor_breaks(held_at(0), job.mesh), by_rows=True)
    return [_kind(job, ranks, held_at(ranks[0])) for ranks in groups]


def _check(job: Job) -> None:
    mesh = job.mesh
    if mesh.pp > 1 or mesh.cp > 1:
        raise InputError("--plan transformers takes dp, tp and ep; leave out pp and cp")
    if not job.train and mesh.dp > 1:
        raise InputError("--plan transformers serves with dp=1: a replica is like another")
    if job.train and job.zero != 3:
        raise InputError("--plan transformers spreads like ZeRO 3; leave out --zero")


def _kind(job: Job, ranks: list[int], held: list[Held]) -> Kind:
    layers: dict[str, list[Held]] = {}
    for each in held:
        found = re.match(r"(.*?\.\d+)\.", each.name)
        layers.setdefault(found[1] if found else "", []).append(each)
    pieces = [
        Piece(
            copies=1,
            layer=bool(layer),
            held=tuple(own),
            collectives={},
            kv_cache_bytes=0,
            optimizer_bytes=_state(job, own),
            activation_bytes=None if job.train else 0,
        )
        for layer, own in layers.items()
    ]
    return kind_from(job, list(ranges(ranks)), [0], len(ranks), pieces, [])


def _state(job: Job, held: list[Held]) -> int:
    if not job.train:
        return 0
    return state_bytes(
        job.optimizer, [each.shard for each in held if each.trained], DTYPES[job.stored]
    )


def _held(config: Json, job: Job, rank: int) -> list[Held]:
    """List what a rank has of each parameter, once each."""
    module, _ = build_transformers(config, dtype=DTYPES[job.stored])
    roles, (routed, _unknown) = Roles(module), routing(module)
    told = {
        name: (
            role_name(roles.role.get(id(module.get_submodule(name.rpartition(".")[0])))),
            tuple(p.shape),
            routed.get(id(p)),
        )
        for name, p in module.named_parameters()
    }
    cut: dict[str, tuple[int, ...]] = {}

    def between() -> None:
        cut.update({name: tuple(_local(p).shape) for name, p in module.named_parameters()})

    with fake_world(job.mesh, rank, job.zero), quiet():
        asked, meshes = _config(job), _meshes(job.mesh, rank)
        try:
            distribute(module, asked, meshes, between)
        except ImportError as error:
            raise _other_version(error) from None
        except ValueError as error:  # a class without a plan of the kind that the mesh needs
            said = str(error).partition(". ")[0]
            raise InputError(
                f"transformers does not place this model so: {said}; change --mesh, or leave out "
                "--plan transformers"
            ) from None
        shards = {name: _local(p).numel() for name, p in module.named_parameters()}
    found = []
    for name, (role, whole, chosen) in told.items():
        if name not in cut:  # tied to another
            continue
        values = torch.Size(cut[name]).numel()
        k, n = chosen or (1, 1)
        mine = cut[name][0] if n > 1 else 1
        active = values // mine * min(k, mine) if n > 1 else values * k
        found.append(
            Held(
                name=name,
                role=role,
                whole=whole,
                cut=cut[name],
                active=active,
                shard=shards[name],
                expert=job.mesh.ep > 1 and n > 1,
                trained="indexer" not in name.split("."),
            )
        )
    return found


def _local(tensor: nn.Parameter) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _config(job: Job) -> DistributedConfig:
    try:
        from transformers.distributed.configuration_utils import DistributedConfig

        mesh = job.mesh
        return DistributedConfig(tp_size=mesh.tp, fsdp_size=mesh.dp, ep_size=mesh.ep, pp_size=1)
    except (ImportError, TypeError) as error:
        raise _other_version(error) from None
    except ValueError as error:
        raise InputError(
            f"the installed transformers does not take this mesh: {str(error).splitlines()[0]}; "
            "change it, or leave out --plan transformers"
        ) from None


def _other_version(error: Exception) -> InputError:
    return InputError(
        "--plan transformers is written for transformers 5.23, and the installed one differs: "
        f"{str(error).splitlines()[0]}; install that one, or leave out --plan transformers"
    )


def _meshes(mesh: Mesh, rank: int) -> TransformersDeviceMesh:
    from transformers.distributed.utils import TransformersDeviceMesh

    made = [
        device_mesh(torch.arange(mesh.world).view(1, 1, copies, whole), rank, AXES[name])
        for copies, whole, name in (
            (mesh.shard, mesh.tp, "tp"),
            (mesh.expert_shard, mesh.ep, "ep"),
        )
    ]
    return TransformersDeviceMesh(*made)
