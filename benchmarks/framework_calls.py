"""The frameworks' own functions, each called at sizes that frameworks.py sends.

Runs in the environment that frameworks.py makes, which has no metacount. Of a framework's file only
the named functions are compiled and called, with stand-ins for what they ask of the rest of it.
Reads {"cases": {formula: [sizes, ...]}, "sources": folder} from stdin, writes what each gives.
"""

from __future__ import annotations
import __future__

import ast
import json
import math
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace as Args
from typing import Any


class Unset:
    """Arguments of which all that were not given are None."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


def lifted(file: Path, *names: str, **given: Any) -> Args:
    """The functions of these names in a file, methods too, and nothing else of it.

    `Class.method` names a method of one class; it is called with a stand-in for self.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    space: dict[str, Any] = {"math": math, **given}
    found = {}
    for name in names:
        owner, _, function = name.rpartition(".")
        inside: Any = tree
        if owner:
            inside = next(
                n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == owner
            )
        node = next(
            n for n in ast.walk(inside) if isinstance(n, ast.FunctionDef) and n.name == function
        )
        node.decorator_list = []
        module = ast.Module(body=[node], type_ignores=[])
        code = compile(module, str(file), "exec", flags=__future__.annotations.compiler_flag)
        exec(code, space)
        found[function] = space[function]
    return Args(**found, space=space)


def locals_of(function: Any, *args: Any) -> dict[str, Any]:
    """The local names of a function when it ends: what it prints instead of returning."""
    seen: dict[str, Any] = {}
    code = function.__code__

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "return" and frame.f_code is code:
            seen.update(frame.f_locals)

    sys.setprofile(watch)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return seen


def config(s: dict[str, Any], **more: Any) -> Args:
    """The sizes under the names of a transformers config."""
    found = {
        "hidden_size": s["d_model"],
        "vocab_size": s["vocab_size"],
        "num_hidden_layers": s["n_layers"],
        "num_attention_heads": s["n_heads"],
        "intermediate_size": s["d_ff"] or s["d_ff_expert"],
        "tie_word_embeddings": s["tie_embeddings"],
    }
    if s["attention"] == "gqa":
        found |= {"num_key_value_heads": s["n_kv_heads"], "head_dim": s["head_dim"]}
    else:
        found |= {
            name: s[name]
            for name in (
                "q_lora_rank",
                "kv_lora_rank",
                "qk_nope_head_dim",
                "qk_rope_head_dim",
                "v_head_dim",
            )
        }
        found["qk_head_dim"] = s["qk_nope_head_dim"] + s["qk_rope_head_dim"]
    if s["n_experts"]:
        found |= {
            "num_experts": s["n_experts"],
            "num_local_experts": s["n_experts"],
            "n_routed_experts": s["n_experts"],
            "moe_intermediate_size": s["d_ff_expert"],
            "num_experts_per_tok": s["top_k"],
            "decoder_sparse_step": 1,
            "n_shared_experts": s["n_shared_experts"],
            "first_k_dense_replace": s["n_dense_layers"],
        }
    if s["window"]:
        kinds = {"L": "sliding_attention", "G": "full_attention"}
        found |= {"sliding_window": s["window"], "layer_types": [kinds[k] for k in pattern(s)]}
    return Args(**found, **more)


def pattern(s: dict[str, Any]) -> str:
    """A letter for each layer: windowed or not."""
    kinds: str = s["window_pattern"]
    return (kinds * s["n_layers"])[: s["n_layers"]] if s["window"] else "G" * s["n_layers"]


def megatron_args(s: dict[str, Any]) -> Unset:
    """The sizes as Megatron's arguments; `swiglu` and its quick GeGLU as its options set them."""
    moe = bool(s["n_experts"])
    dense = s["n_dense_layers"]
    return Unset(
        num_layers=s["n_layers"],
        hidden_size=s["d_model"],
        seq_length=s["seq_len"],
        num_attention_heads=s["n_heads"],
        group_query_attention=s["attention"] == "gqa",
        num_query_groups=s["n_kv_heads"],
        kv_channels=s["head_dim"],
        ffn_hidden_size=s["d_ff"] or s["d_ff_expert"],
        padded_vocab_size=s["vocab_size"],
        swiglu=s["gated"] and s["activation"] == "silu",
        gated_linear_unit=s["gated"],
        num_experts=s["n_experts"] if moe else None,
        num_moe_experts=s["n_experts"] if moe else None,
        moe_layer_freq=[int(i >= dense) for i in range(s["n_layers"])] if moe else None,
        moe_router_topk=s["top_k"],
        moe_ffn_hidden_size=s["d_ff_expert"],
        moe_shared_expert_intermediate_size=shared(s) or None,
        moe_shared_expert_gate=s["shared_expert_gate"],
        multi_latent_attention=s["attention"] == "mla",
        q_lora_rank=s["q_lora_rank"],
        kv_lora_rank=s["kv_lora_rank"],
        qk_head_dim=s["qk_nope_head_dim"],
        qk_pos_emb_head_dim=s["qk_rope_head_dim"],
        v_head_dim=s["v_head_dim"],
        normalization={"rmsnorm": "RMSNorm"}.get(s["norm"], "LayerNorm"),
        untie_embeddings_and_output_weights=not s["tie_embeddings"],
        add_bias_linear=s["ffn_bias"],
        tensor_model_parallel_size=1,
        data_parallel_size=1,
        pipeline_model_parallel_size=1,
        expert_tensor_parallel_size=1,
        expert_model_parallel_size=1,
        world_size=1,
    )


def shared(s: dict[str, Any]) -> int:
    """The width of all shared experts together."""
    return int((s["n_shared_experts"] or 0) * (s["d_ff_shared"] or s["d_ff_expert"] or 0))


def main() -> None:
    """Call every function that can be had at every case, and write what it gives."""
    from framework_table import FUNCTIONS

    asked = json.load(sys.stdin)
    found: dict[str, list[dict[str, Any]]] = {}
    for id, cases in asked["cases"].items():
        if id not in FUNCTIONS:
            continue
        one = FUNCTIONS[id]
        for version, file in places(one, asked["sources"], asked["versions"]):
            found.setdefault(id, []).append({"version": version, **called(one.call, file, cases)})
    json.dump(found, sys.stdout)


def places(one: Any, sources: str | None, versions: dict[str, str]) -> list[tuple[str, Path]]:
    """Where a function can be had: its package if it is installed, its file among the sources."""
    found = []
    if one.package is not None:
        try:
            version = metadata.version(one.package)
            file = Path(str(metadata.distribution(one.package).locate_file(one.installed)))
            if file.exists():
                found.append((f"{one.package} {version}", file))
        except metadata.PackageNotFoundError:
            pass
    if sources is not None and one.project is not None:
        commit = versions[one.project]
        file = Path(sources, f"{one.project}@{commit}", one.file)
        if file.exists():
            found.append((f"{one.project} {commit}", file))
    return found


def called(call: Any, file: Path, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """What a function gives at each case, as whole numbers; or the error that it raises."""
    values: list[str] = []
    try:
        for s in cases:
            value = call(file, s)
            exact = value if isinstance(value, int) else round(value)
            values.append(str(exact))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    return {"values": values}


if __name__ == "__main__":
    main()
