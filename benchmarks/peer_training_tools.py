"""One training setup through one tool, each as its own documentation says; see peer_training.py.

python peer_training_tools.py TOOL SETTING.json FOLDER

Prints one line of JSON: `states` (bytes of parameters, gradients and optimizer on the largest
rank), `activations` (that the backward keeps), `peak`, `params`, whatever of them the tool gives;
`cannot`, the reason, where it has no way to say what the setting is. FOLDER is a checkout, or none.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from peer_tools import estimated, printed

Setting = dict[str, Any]
Figures = dict[str, Any]
DEGREES = ("dp", "tp", "pp", "ep")


class Cannot(Exception):
    """A tool has no way to say what a setting is."""


def world(setting: Setting) -> int:
    """All ranks; `ep` takes none of its own."""
    return int(setting["dp"] * setting["tp"] * setting["pp"])


def only(setting: Setting, *degrees: str) -> bool:
    """Whether a setting has no degree of parallelism but these."""
    return all(setting[name] == 1 for name in DEGREES if name not in degrees)


def options(setting: Setting) -> list[str]:
    """What `metacount train` and `metacount shard --train` are asked."""
    found = ["--seq", str(setting["seq"]), "--dtype", setting["dtype"]]
    found += ["--attention", setting["attention"], "--checkpointing", setting["checkpointing"]]
    if setting["master"]:
        found.append("--master-weights" if world(setting) == 1 else "--mixed-precision")
    if world(setting) == 1:
        return ["train", *found, *(["--grad-dtype", "fp32"] if setting["grad_fp32"] else [])]
    mesh = ",".join(f"{name}={setting[name]}" for name in DEGREES if setting[name] > 1)
    return ["shard", *found, "--train", "--mesh", mesh, "--zero", str(setting["zero"])]


def metacount(setting: Setting, folder: str) -> Figures:
    """`metacount train` of transformers' module on one device, `metacount shard` on a mesh."""
    from metacount.cli import main

    command, *rest = options(setting)
    with tempfile.TemporaryDirectory() as own:
        file = Path(own, "config.json")
        file.write_text(json.dumps(setting["config"]), encoding="utf-8")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = main([command, str(file), *rest, "--json"])
    if code:
        raise RuntimeError(f"ended with exit code {code}")
    return figures(json.loads(out.getvalue()))


def figures(found: dict[str, Any]) -> Figures:
    """What is compared, of what `metacount --json` printed: on a mesh, of the largest rank."""
    held = found
    if "kinds" in found:
        held = max(found["kinds"], key=lambda kind: kind["total_bytes"])
    names = ("param_bytes", "buffer_bytes", "gathered_bytes", "master_weight_bytes")
    names = (*names, "gradient_bytes", "optimizer_bytes")
    parts = {name: held[name] for name in names if held.get(name)}
    # ZeRO 3 gathers one part at a time, and for a moment
    passing = parts.get("gathered_bytes", 0) if found.get("zero") == 3 else 0
    said = {"params": found["params"], **parts, "states": sum(parts.values()) - passing}
    said["activations"] = held["activation_bytes"]
    return said | ({"peak": found["peak_bytes"]} if "peak_bytes" in found else {})


def accelerate(setting: Setting, folder: str) -> Figures:
    """`accelerate estimate-memory`, "Training using Adam": its largest stage of a step."""
    if world(setting) > 1:
        raise Cannot("knows one device alone")
    if setting["dtype"] == "bf16" and not setting["master"]:
        raise Cannot("has float32 weights beside those in bf16")
    # it has no bf16: float16 is as wide
    dtype = {"fp32": "float32", "bf16": "float16"}[setting["dtype"]]
    ((_, _, n_bytes, stages),) = estimated(setting["config"], dtype)
    width = 4 if dtype == "float32" else 2
    return {"params": int(n_bytes) // width, "states": max(stages.values())}


def deepspeed(setting: Setting, folder: str) -> Figures:
    """`estimate_zero2/3_model_states_mem_needs`, of the parameters of transformers' module."""
    if setting["zero"] not in (2, 3):
        raise Cannot("estimates ZeRO 2 and 3 alone")
    if not only(setting, "dp"):
        raise Cannot("knows data parallelism alone")
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs
    from peer_tools import built

    model, _ = built(setting["config"], "meta")
    params = sum(parameter.numel() for parameter in model.parameters())
    machine = min(8, setting["dp"])
    how = {"num_gpus_per_node": machine, "num_nodes": setting["dp"] // machine}
    if setting["zero"] == 2:
        states = estimate_zero2_model_states_mem_needs(params, **how, cpu_offload=False)[1]
        return {"params": params, "states": states}
    # the largest layer as its own function for live models takes it; it is added to the states
    sizes = [sum(p.numel() for p in m.parameters(recurse=False)) for m in model.modules()]
    _, states, layer = estimate_zero3_model_states_mem_needs(
        params, max(sizes), **how, cpu_offload=False, cpu_offload_params=False
    )
    return {"params": params, "states": states - layer, "gathered_bytes": layer}


def megatron(setting: Setting, folder: str) -> Figures:
    """`report_theoretical_memory`, of arguments as Megatron-LM's parser would leave them."""
    if not folder:
        raise Cannot("needs a checkout: --megatron DIR")
    if setting["dtype"] != "bf16" or not setting["master"]:
        raise Cannot("has float32 weights beside those in bf16")
    if setting["zero"] > 1:
        raise Cannot("knows its distributed optimizer (ZeRO 1) alone")
    args = megatron_args(setting)
    with contextlib.redirect_stdout(sys.stderr):
        states, activations, _ = megatron_report(Path(folder)).report_theoretical_memory(
            args, num_microbatches=setting["micro_batches"]
        )
    norms = {"last_norm": 0, "query_norms": 0}
    if setting["pp"] > 1:
        norms["last_norm"] = args.hidden_size // setting["pp"]
    if setting["config"]["model_type"].startswith("qwen3"):
        norms["query_norms"] = -2 * args.kv_channels * args.num_layers // setting["pp"]
    return {
        "states": round(states * 2**20),
        "activations": round(activations * 2**20),
        **norms,  # parameters that it counts too many on the largest rank, as its code shows
    }


def megatron_report(folder: Path) -> ModuleType:
    """The one file of the report: the rest of Megatron-LM asks for triton and Python 3.12."""
    file = folder / "megatron" / "training" / "theoretical_memory_usage.py"
    package, beside = ModuleType("megatron_training"), ModuleType("megatron_training.utils")
    package.__dict__["__path__"] = []
    beside.__dict__.update(is_hybrid_model=lambda args: False, print_rank_0=print)
    name = "megatron_training.theoretical_memory_usage"
    found = importlib.util.spec_from_file_location(name, file)
    if found is None or found.loader is None or not file.is_file():
        raise FileNotFoundError(f"no {file.relative_to(folder)} in the checkout")
    module = importlib.util.module_from_spec(found)
    sys.modules.update({"megatron_training": package, beside.__name__: beside})
    found.loader.exec_module(module)
    return module


def megatron_args(setting: Setting) -> SimpleNamespace:
    """Megatron-LM's names for the sizes of a config and for a setup."""
    config = setting["config"]
    heads, width = config["num_attention_heads"], config["hidden_size"]
    groups = config.get("num_key_value_heads", heads)
    experts = config.get("num_experts", config.get("num_local_experts"))
    return SimpleNamespace(
        num_layers=config["num_hidden_layers"],
        hidden_size=width,
        ffn_hidden_size=config["intermediate_size"],
        num_attention_heads=heads,
        kv_channels=config.get("head_dim", width // heads),
        group_query_attention=groups != heads,
        num_query_groups=groups,
        swiglu=True,
        normalization="RMSNorm",
        add_bias_linear=False,
        multi_latent_attention=False,
        padded_vocab_size=config["vocab_size"],
        untie_embeddings_and_output_weights=not config["tie_word_embeddings"],
        num_experts=experts,
        moe_layer_freq=1,
        moe_ffn_hidden_size=config.get("moe_intermediate_size", config["intermediate_size"]),
        moe_router_topk=config.get("num_experts_per_tok"),
        moe_shared_expert_intermediate_size=None,
        moe_latent_size=None,
        mtp_num_layers=None,
        seq_length=setting["seq"],
        micro_batch_size=1,
        tensor_model_parallel_size=setting["tp"],
        pipeline_model_parallel_size=setting["pp"],
        virtual_pipeline_model_parallel_size=None,
        expert_model_parallel_size=setting["ep"],
        expert_tensor_parallel_size=1,
        data_parallel_size=setting["dp"],
        world_size=world(setting),
        use_distributed_optimizer=setting["zero"] == 1,
        sequence_parallel=False,
        recompute_granularity=None if setting["checkpointing"] == "none" else "full",
    )


def torch_tracker(setting: Setting, folder: str) -> Figures:
    """`MemTracker`, and on a mesh `FSDPMemTracker`, which torchtitan's script runs."""
    from peer_training_tracker import on_a_mesh, on_one_device

    if not only(setting, "dp"):
        raise Cannot("follows FSDP alone")
    if world(setting) == 1:
        if setting["master"]:
            raise Cannot("torch's optimizers keep no float32 copies beside parameters in bf16")
        return on_one_device(setting)
    return on_a_mesh(setting)


def torchtitan(setting: Setting, folder: str) -> Figures:
    """`scripts/estimate/estimation.py` of a checkout that has it (v0.2.2; later ones do not)."""
    if not only(setting, "dp") or setting["zero"] != 3:
        raise Cannot("follows FSDP alone")
    if setting["flavor"] is None:
        raise Cannot("has no model of this size")
    if not folder:
        raise Cannot("needs a checkout of v0.2.2, the last with the script: --torchtitan DIR")
    models, flavor = setting["flavor"]
    file = f"torchtitan/models/{models}/train_configs/{flavor}.toml"
    asked = {"local_batch_size": 1, "seq_len": setting["seq"]}
    said = subprocess.run(
        [sys.executable, "-m", "scripts.estimate.estimation", "--job.config_file", file]
        + ["--memory_estimation.enable", "--activation_checkpoint.mode", setting["checkpointing"]]
        + [word for name, n in asked.items() for word in (f"--training.{name}", str(n))],
        cwd=folder,
        env={**os.environ, "WORLD_SIZE": str(setting["dp"]), "LOCAL_RANK": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if said.returncode:
        raise RuntimeError((said.stderr or said.stdout).strip().splitlines()[-1])
    return {"peak": tracker_max(said.stdout)}


def tracker_max(text: str) -> int:
    """The bytes of torchtitan's line "Tracker Max".

    >>> tracker_max("Tracker Max: 1.5 GiB")
    1610612736
    """
    found = re.search(r"Tracker Max: ([0-9.]+) GiB", text)
    if found is None:
        raise RuntimeError("printed no Tracker Max")
    return round(float(found[1]) * 2**30)


TOOLS: dict[str, Callable[[Setting, str], Figures]] = {
    "metacount": metacount,
    "accelerate": accelerate,
    "deepspeed": deepspeed,
    "megatron-lm": megatron,
    "torch tracker": torch_tracker,
    "torchtitan": torchtitan,
}


def main() -> int:
    """Run one tool."""
    tool, file, folder = sys.argv[1:]
    setting = json.loads(Path(file).read_text(encoding="utf-8"))

    def count() -> dict[str, Any]:
        try:
            return dict(TOOLS[tool](setting, folder))
        except Cannot as reason:
            return {"cannot": str(reason)}

    printed(count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
