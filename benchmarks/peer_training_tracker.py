"""torch's own memory trackers on the modules that metacount measures, the whole model at once.

On one device `MemTracker` follows transformers' module. On a mesh `FSDPMemTracker`, which is what
torchtitan's estimation runs, follows metacount's reference module under FSDP2, which places it as
for `metacount shard`; who counts is torch. Both run two steps on fake tensors: in the second the
optimizer's state is there from the start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def snapshot(tracker: MemTracker, which: str) -> dict[str, int]:
    """Bytes on the device, by the tracker's own names of kinds, in lower case."""
    ((_, found),) = tracker.get_tracker_snapshot(which).items()
    return {
        str(getattr(name, "name", name)).lower(): int(n_bytes) for name, n_bytes in found.items()
    }


def followed(
    tracker: MemTracker, forward: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer
) -> dict[str, int]:
    """Two steps under a tracker: what it finds after forward and step, and at the peak."""
    kept: dict[str, int] = {}
    held: dict[str, int] = {}
    with tracker:
        for i in range(2):
            loss = forward()
            kept = snapshot(tracker, "current")
            loss.backward()
            optimizer.step()
            held = snapshot(tracker, "current")
            optimizer.zero_grad()
            if i == 0:
                tracker.reset_mod_stats()
    peak = snapshot(tracker, "peak")
    names = ("param", "buffer", "grad", "sharded_param", "sharded_grad", "opt")
    # ZeRO 2 keeps what it gathered after the forward, ZeRO 3 does not
    states = sum(held.get(name, 0) for name in names) + kept.get("unsharded_param", 0)
    return {"states": states, "activations": kept["act"], "peak": peak["total"]}


def on_one_device(setting: dict[str, Any]) -> dict[str, int]:
    """transformers' module, in evaluation: metacount counts no dropout either."""
    import transformers

    config = dict(setting["config"])
    kind, name = config.pop("model_type"), config["architectures"][0]
    torch.set_default_dtype(DTYPES[setting["dtype"]])
    with FakeTensorMode():
        sizes = transformers.AutoConfig.for_model(
            kind, **config, attn_implementation=setting["attention"], use_cache=False
        )
        model = getattr(transformers, name)(sizes).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if setting["checkpointing"] == "full":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        tokens, labels = (torch.zeros(1, setting["seq"], dtype=torch.long) for _ in range(2))
        tracker = MemTracker()
        tracker.track_external(model, optimizer, tokens, labels)
        return followed(tracker, lambda: model(input_ids=tokens, labels=labels).loss, optimizer)


def on_a_mesh(setting: dict[str, Any]) -> dict[str, int]:
    """The reference module, whole, on the first rank of a fake world."""
    from metacount.huggingface.config.to_spec import spec_from_config
    from metacount.measure.torch_private import fake_tensors
    from metacount.sharding.by_engine import (
        EvenChoice,
        Whole,
        fused,
        in_memory,
        input_of,
        place,
        result,
    )
    from metacount.sharding.engine import fake_world
    from metacount.sharding.mesh import Mesh
    from metacount.sharding.shard import Asked, job_of
    from metacount.training.model import Watch, checkpointed
    from metacount.training.programs import as_trained
    from metacount.training.setup import Setup
    from metacount.training.step import loss_of

    spec = spec_from_config(setting["config"]).spec
    asked = Asked(
        zero=setting["zero"],
        mixed_precision=setting["master"],
        seq_len=setting["seq"],
        dtype=setting["dtype"],
        attention=setting["attention"],
        checkpointing=setting["checkpointing"],
    )
    job = job_of(spec, Mesh(dp=setting["dp"]), asked, train=True)
    mode = fake_tensors()
    with fake_world(job.mesh, 0, job.zero) as world:
        layers = range(spec.last_stack.n_layers)
        with mode:
            model = in_memory(Whole(spec, job.stored).piece(layers, first=True, last=True))
        place(model, {}, world, job)
        with mode, EvenChoice(), as_trained(model, job.attention):
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
            tokens, targets = (input_of(model, job.rows, job.length, job.dtype) for _ in range(2))
            tracker = FSDPMemTracker(mod=model, optm=optimizer)
            tracker.track_inputs((tokens, targets))

            def forward() -> torch.Tensor:
                with fused(job):
                    out = result(model(tokens))
                    return loss_of(out, targets, Setup(attention=job.attention))

            blocks = [*model.last_stack.blocks]
            with checkpointed(blocks, job.checkpointing, Watch(), lambda: fused(job)):
                return followed(tracker, forward, optimizer)
