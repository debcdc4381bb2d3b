"""Shard small models for real with gloo, beside whole ones: a process for each rank.

`python real_ranks.py WORLD FILE CASES` writes what each rank found as JSON to FILE-RANK.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.pipelining import schedules
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.multiprocessing import start_processes
from torch.nn.parallel import DistributedDataParallel

from helpers.allocations import Alive
from helpers.real_context import in_parts
from helpers.sharding_specs import ALL
from metacount.measure.torch_private import resizing_told
from metacount.modules.build import build
from metacount.modules.moe import Experts
from metacount.sharding.by_engine import Followed, PipedStage, Whole, fused, place, result, run_step
from metacount.sharding.engine import RingAttention, Traffic, end_step, local_part, states, world_of
from metacount.sharding.engine import stepped as one_step
from metacount.sharding.mesh import parse_mesh, stage_layers
from metacount.sharding.plan import default_plan, for_mesh
from metacount.sharding.result import Job
from metacount.tensors import tensor_bytes
from metacount.training.model import Watch, checkpointed
from metacount.training.optimizers import made
from metacount.training.programs import as_trained
from metacount.training.setup import Setup
from metacount.training.step import loss_of as step_loss

SEED = 5


def loss_of(logits_BSV: Tensor, tokens_BS: Tensor) -> Tensor:
    """Mean cross-entropy of each next token."""
    return F.cross_entropy(logits_BSV[:, :-1].flatten(0, 1), tokens_BS[:, 1:].flatten())


def loss_of_each(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    """Mean cross-entropy where each position has a target of its own."""
    return F.cross_entropy(logits_BSV.flatten(0, 1), targets_BS.flatten())


def job_of(case: dict[str, Any]) -> Job:
    """The job that a case is of."""
    return Job(
        mesh=parse_mesh(case["mesh"]),
        train=True,
        zero=case["zero"],
        optimizer=case["optimizer"],
        batch_size=case["batch"],
        seq_len=case["seq"],
        micro_batches=case["micro"],
        dtype=case["dtype"],
        master=case["master"],
        attention=case["attention"],
        checkpointing=case["checkpointing"],
        schedule=case["schedule"],
        sequence_parallel=case["sequence"],
        loss_parallel=case["cut_logits"],
    )


def wait_and_let_go(works: list[Any]) -> None:
    """Wait for what was sent, and let go of it: a work of gloo's holds its tensor."""
    while works:
        works.pop().wait()


def run_peak(case: dict[str, Any], rank: int) -> dict[str, int]:
    """The most that is alive in a step after the first, less buffers.

    The least of three: threads of gloo may hold for a moment what the step has let go of.
    """
    job, spec = job_of(case), ALL[case["spec"]]
    world = world_of(job.mesh, rank, job.zero)
    whole = Whole(spec, job.stored, device="cpu", seed=SEED)
    layers, at = stage_layers(spec.n_layers, job.mesh.pp), world.place.stage
    own = range(sum(layers[:at]), sum(layers[: at + 1]))
    model = whole.piece(own, first=at == 0, last=at == job.mesh.pp - 1)
    place(model, for_mesh(default_plan(spec), job), world, job, by_fsdp=not job.replicated)
    ran: Any = DistributedDataParallel(model) if job.replicated else model
    if job.mesh.pp > 1:
        ran = PipedStage(model, world, job, partial(step_loss, setup=Setup()))
    shape = (job.rows * (job.micro_batches if job.mesh.pp > 1 else 1), job.seq_len)
    tokens, targets = (torch.randint(spec.vocab_size, shape) for _ in range(2))
    trained = [p for p in model.parameters() if p.requires_grad]
    (optimizer,) = made(Setup(optimizer=job.optimizer, foreach=True), trained, [])
    found = []
    blocks = [*model.last_stack.blocks]
    alive, buffers = Alive(), tensor_bytes(model.buffers())
    with (
        in_parts(world.context, False, tokens, targets) if job.ring else nullcontext(),
        patch.object(schedules, "_wait_batch_p2p", wait_and_let_go),
        as_trained(model, job.attention),
        checkpointed(blocks, job.checkpointing, Watch(), lambda: fused(job)),
    ):
        if job.ring:  # in the place of what is cut of whole sequences
            tokens, targets = tokens.clone(), targets.clone()
        for experts in (each for each in model.modules() if isinstance(each, Experts)):
            if job.mesh.ep > 1:
                vars(experts)["forward"] = chosen_evenly(experts, job.mesh.ep)
            else:
                vars(experts)["rows"] = evenly(experts)
        for _ in range(4):
            gc.collect()
            gc.disable()
            alive = Alive(alive)  # with buckets of gradients, which C++ has made in a step before
            for buffer in model.buffers():
                alive.add(buffer)
            for tensor in (
                *map(local_part, model.parameters()),
                *states(optimizer),
                tokens,
                targets,
            ):
                alive.add(tensor)
            with alive:
                run_step(ran, job, tokens, targets)
                optimizer.step()
            optimizer.zero_grad()
            gc.enable()
            found.append(alive.most - buffers)
    return {"peak": min(found[1:])}


def evenly(experts: Any) -> Any:
    """Rows of a mixture in even shares, whoever chose them: which go where changes no size."""

    def rows(x_RD: Tensor, name: str, expert_R: Tensor, counts: list[int]) -> Tensor:
        n, many = x_RD.shape[0], experts.n_experts
        even = [n // many + (i < n % many) for i in range(many)]
        return Experts.rows(experts, x_RD, name, expert_R, even)

    return rows


def chosen_evenly(experts: Any, ranks: int) -> Any:
    """A forward of experts on several ranks in which each expert is chosen as often as another."""
    forward, n_experts = experts.forward, experts.n_experts * ranks

    def run(x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        even = torch.arange(chosen.numel()).view_as(chosen) % n_experts
        chosen.data.copy_(even)  # in its place: no tensor more is alive
        del even
        return forward(x, chosen, weights)

    return run


def run_case(case: dict[str, Any], rank: int) -> dict[str, Any]:
    job, spec = job_of(case), ALL[case["spec"]]
    mesh = job.mesh
    world = world_of(mesh, rank, job.zero)
    torch.manual_seed(SEED + 1)
    tokens = torch.randint(spec.vocab_size, (job.batch_size, job.seq_len))
    whole = build(spec, device="cpu", dtype=job.dtype, seed=SEED).train()
    targets = tokens.roll(-1, 1)
    logits = whole(tokens).logits_BSV
    each = job.ring or job.loss_parallel
    expected = loss_of_each(logits, targets) if each else loss_of(logits, tokens)
    expected.backward()
    grads = {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}

    layers = stage_layers(spec.n_layers, mesh.pp)
    at = world.place
    own = range(sum(layers[: at.stage]), sum(layers[: at.stage + 1]))
    first, last = at.stage == 0, at.stage == mesh.pp - 1
    stage = Whole(spec, job.dtype, device="cpu", seed=SEED).piece(own, first=first, last=last)
    held = place(stage, for_mesh(default_plan(spec), job), world, job)
    rows = job.batch_size // mesh.dp
    own_rows = slice(at.shard // mesh.cp * rows, (at.shard // mesh.cp + 1) * rows)
    mine = tokens[own_rows]
    kept: list[int] = []
    with Traffic(world.groups) as traffic:
        if job.ring:
            loss = stepped_in_parts(stage, mine.clone(), targets[own_rows].clone(), job, world)
        else:
            loss = stepped(stage, mine, job, world, last, kept)
    seen = traffic.taken()
    end_step(stage)
    # rank 0 of a stage has the name of its first layer at 0
    worst = 0.0
    for name, parameter in stage.named_parameters():
        pieces = name.split(".")
        if "layers" in pieces:
            i = pieces.index("layers") + 1
            pieces[i] = str(own[int(pieces[i])])
        gradient = parameter.grad
        assert gradient is not None, (name, case)
        got = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        worst = max(worst, (got - grads[".".join(pieces)]).abs().max().item())
    # what every rank of a stage found is averaged over the parts of the batch
    if last:
        total = loss.detach().clone()
        for name in ("replicate", "shard"):
            dist.all_reduce(total, group=world.dense.get_group(name))
        loss = total / mesh.shard
    optimizer = one_step(job.optimizer, stage.parameters())
    return {
        "loss": loss.item() if last else None,
        "expected": expected.item(),
        "worst": worst,
        "largest": max(g.abs().max().item() for g in grads.values()),
        "held": [[each.name, list(each.whole), list(each.cut), each.shard] for each in held],
        "gradients": sum(local_part(p.grad).numel() for p in stage.parameters()),
        "optimizer_bytes": tensor_bytes(states(optimizer)),
        "kept": kept,
        "seen": [[*key[1:], n] for key, n in sorted(seen.items())],
    }


def stepped_in_parts(stage: Any, tokens: Tensor, targets: Tensor, job: Job, world: Any) -> Tensor:
    """Run forward and backward of one step on this rank's part of each sequence; its loss."""
    with (
        in_parts(world.context, job.dtype == "fp64", tokens, targets),
        as_trained(stage, job.attention),
        RingAttention(),
    ):
        loss = loss_of_each(result(stage(tokens)), targets)
        loss.backward()
    return loss.detach()


def stepped(
    stage: Any, tokens: Tensor, job: Job, world: Any, last: bool, kept: list[int]
) -> Tensor:
    """Run forward and backward of one step; the loss of this rank's part of the batch.

    Without a pipeline, `kept` takes the bytes that each forward kept for its backward.
    """
    if job.mesh.pp == 1:
        found = []
        for part in tokens.chunk(job.micro_batches):
            if job.zero < 2 and job.mesh.shard > 1:
                stage.set_requires_gradient_sync(len(found) == job.micro_batches - 1)
            keeping = Followed(stage)
            with keeping.saving(), resizing_told(keeping.resized):
                logits = result(stage(part.clone()))
            kept.append(keeping.saved_bytes())
            with loss_parallel() if job.loss_parallel else nullcontext():
                if job.loss_parallel:
                    loss = loss_of_each(logits, part.roll(-1, 1))
                else:
                    loss = loss_of(logits, part)
                (loss / job.micro_batches).backward()
            found.append(local_part(loss.detach()))
        return torch.stack(found).mean()
    losses = PipedStage(stage, world, job, loss_of).step(tokens, tokens)
    return torch.stack(losses).mean() if last else torch.zeros(())


def run_rank(rank: int, world: int, file: str, cases: list[dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(world))
    found = []
    for i, case in enumerate(cases):
        # a world for each number of ranks: those beyond it wait for the next case
        n = parse_mesh(case["mesh"]).world
        if rank < n:
            store = dist.FileStore(f"{file}-store-{i}", n)
            dist.init_process_group("gloo", rank=rank, world_size=n, store=store)
            try:
                found.append((run_peak if case["peak"] else run_case)(case, rank))
            finally:
                dist.destroy_process_group()
        else:
            found.append({})
    Path(f"{file}-{rank}").write_text(json.dumps(found), encoding="utf-8")


def main() -> None:
    world, file, cases = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    # forked, so that torch is imported once; what is imported when first used, too
    importlib.import_module("torch._dynamo")
    start_processes(run_rank, args=(world, file, cases), nprocs=world, start_method="fork")


if __name__ == "__main__":
    main()
