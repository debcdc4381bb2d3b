"""More of the calls of framework_functions.py."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace as Args
from typing import Any

from framework_calls import Unset, config, lifted, locals_of, megatron_args, pattern
from framework_functions import Sizes, module, tokens


# --- nanoGPT, nanochat, the EleutherAI cookbook
def nanogpt(file: Path, s: Sizes) -> Any:
    found = lifted(file, "get_num_params", "estimate_mfu")
    model = module(s, wpe=s["position_table"] // s["d_model"])
    model.transformer = Args(wpe=model.wpe)
    model.config = Args(
        n_layer=s["n_layers"], n_head=s["n_heads"], n_embd=s["d_model"], block_size=s["seq_len"]
    )
    model.get_num_params = lambda: found.get_num_params(model)
    given = locals_of(found.estimate_mfu, model, s["batch_size"], 1.0)
    return given["flops_per_iter"]


def nanochat(name: str) -> Callable[[Path, Sizes], Any]:
    def call(file: Path, s: Sizes) -> Any:
        sizes = [(s["window"] if kind == "L" else s["seq_len"], 0) for kind in pattern(s)]
        its = Args(
            n_layer=s["n_layers"],
            n_head=s["n_heads"],
            n_kv_head=s["n_kv_heads"],
            n_embd=s["d_model"],
            sequence_len=s["seq_len"],
        )
        stand_in = Args(
            config=its, window_sizes=sizes, num_matmul_params=lambda: s["matrix_params"]
        )
        called = getattr(
            lifted(file, name, COMPUTE_DTYPE=Args(itemsize=s["bytes_per_value"])), name
        )
        if name == "estimate_prefill_flops":
            return called(stand_in, s["seq_len"]) * s["batch_size"]
        return called(stand_in) * tokens(s)

    return call


def cookbook(name: str, value: str, **options: Any) -> Callable[[Path, Sizes], Any]:
    def call(file: Path, s: Sizes) -> Any:
        args = Unset(
            num_layers=s["n_layers"],
            hidden_size=s["d_model"],
            vocab_size=s["vocab_size"],
            sequence_length=s["seq_len"],
            tokens=tokens(s),
            kv_size_ratio=Fraction(s["n_kv_heads"], s["n_heads"]),
            num_mlp_linears=2,
            ffn_expansion_factor=4,
            topk=1,
            num_experts=0 if "mem" in file.name else 1,
            expert_interval=1,
            moe=False,
            tied_embeddings=s["tie_embeddings"],
            batch_size_per_gpu=s["batch_size"],
            num_attention_heads=s["n_heads"],
            num_gpus=1,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            is_mixed_precision=True,
            low_prec_bytes_per_val=s["bytes_per_value"],
            high_prec_bytes_per_val=4,
            bytes_per_grad_ele=4,
            optimizer="adamw",
            zero_stage=0,
            misc_mem_gib=0,
            output_tokens=0,
            **options,
        )
        quiet = {n: lambda *_: "" for n in ("print", "convert_flops", "convert_params")}
        quiet["get_hf_model_args"] = lambda a: a
        return locals_of(getattr(lifted(file, name, **quiet), name), args)[value]

    return call


# --- torchtitan, Transformers, TRL
def titan_dense(file: Path, s: Sizes) -> Any:
    import torch

    model = module(s, tok_embeddings=s["vocab_size"])
    called = lifted(file, "get_dense_model_nparams_and_flops", nn=torch.nn)
    return called.get_dense_model_nparams_and_flops(
        model,
        s["n_layers"],
        s["n_heads"],
        2 * (s["d_model"] // s["n_heads"]),
        s["seq_len"],
        s["tie_embeddings"],
    )[1] * tokens(s)


def titan_moe(file: Path, s: Sizes) -> Any:
    moe = bool(s["n_experts"])
    experts = 0
    if moe:
        one = (s["stored_params"] - s["active_params"]) // (s["n_experts"] - s["top_k"])
        experts = one * s["n_experts"]
    sizes = {
        "tok_embeddings.weight": s["token_table"],
        "layers.0.moe.routed_experts.w": experts,
        "rest": s["stored_params"] - s["token_table"] - experts,
    }
    model = Args(
        named_parameters=lambda: [(k, Args(numel=lambda n=n: n)) for k, n in sizes.items()]
    )
    its = Args(router=Args(top_k=s["top_k"]), num_experts=s["n_experts"]) if moe else None
    layers = [Args(moe=its, attention=True)] * s["n_layers"]
    widths = (
        2 * s["head_dim"]
        if s["attention"] == "gqa"
        else (s["qk_nope_head_dim"] + s["qk_rope_head_dim"] + s["v_head_dim"])
    )
    called = lifted(file, "get_moe_model_nparams_and_flops", logger=Args(info=lambda *_: None))
    return called.get_moe_model_nparams_and_flops(
        Args(layers=layers, enable_weight_tying=s["tie_embeddings"]),
        model,
        s["n_heads"],
        widths,
        s["seq_len"],
    )[1] * tokens(s)


def transformers(file: Path, s: Sizes) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = "mixtral" if s["n_experts"] else "llama"
    its = {k: v for k, v in vars(config(s)).items() if k != "layer_types"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **its))
    inputs = {"input_ids": torch.empty(s["batch_size"], s["seq_len"], device="meta")}
    called = lifted(file, "Trainer.floating_point_ops").floating_point_ops
    return called(Args(model=model), inputs)


def trl(file: Path, s: Sizes) -> Any:
    from packaging.version import Version

    found = lifted(
        file, "compute_flops_per_token", Version=Version, transformers=Args(__version__="5.23.0")
    )
    return found.compute_flops_per_token(config(s), s["seq_len"]) * tokens(s)


# --- verl, VeOmni, prime-rl, slime, open-instruct, llm-analysis
def verl(name: str) -> Callable[[Path, Sizes], Any]:
    def call(file: Path, s: Sizes) -> Any:
        lengths = [s["seq_len"]] * s["batch_size"]
        return getattr(lifted(file, name), name)(config(s), tokens(s), lengths, 1) * 10**12

    return call


def veomni(name: str, *, raw: bool = False) -> Callable[[Path, Sizes], Any]:
    helpers = ("_compute_lm_head_params", "_compute_linear_flops", "_compute_routed_moe_lora_flops")

    def call(file: Path, s: Sizes) -> Any:
        found = lifted(file, *helpers, name)
        lengths = [s["seq_len"]] * s["batch_size"]
        stand_in = Args(config=config(s), **{h: getattr(found, h) for h in helpers})
        called = getattr(found, name)
        if raw:
            return called(stand_in, config(s), tokens(s), lengths)
        return called(stand_in, tokens(s), lengths, 1) * 10**12

    return call


def prime(file: Path, s: Sizes) -> Any:
    found = lifted(
        file, "get_active_mm_params", "_get_num_flop_per_token", has_lora_layers=lambda _: False
    )
    its = config(s)
    if s["attention"] == "gqa":
        its = Args(**{k: v for k, v in vars(its).items() if "expert" not in k})
    stand_in = Args(model=None, get_active_mm_params=found.get_active_mm_params)
    return found._get_num_flop_per_token(stand_in, its, s["seq_len"]) * tokens(s)


SLIME = (
    "calculate_lm_head_flops",
    "_is_multi_latent_attention",
    "calculate_qkv_projection_flops",
    "calculate_attention_flops",
    "calculate_output_flops",
    "calculate_mlp_flops",
    "calculate_layer_flops",
    "calculate_fwd_flops",
)


def slime(file: Path, s: Sizes) -> Any:
    args = megatron_args(s)
    args.vocab_size = s["vocab_size"]
    return lifted(file, *SLIME).calculate_fwd_flops([s["seq_len"]] * s["batch_size"], args)


def instruct(name: str) -> Callable[[Path, Sizes], Any]:
    def call(file: Path, s: Sizes) -> Any:
        found = lifted(
            file,
            "attn_flops",
            "mlp_flops",
            "_calculate_num_params",
            "prefill_flops",
            "kv_cache_write_bytes",
            FLOP_PER_MAC=2,
            SOFTMAX_FLOPS_PER_SCORE=4,
        )
        near = pattern(s).count("L") if s["window"] else 0
        its = Args(
            vocab_size=s["vocab_size"],
            hidden_size=s["d_model"],
            num_attn_heads=s["n_heads"],
            head_dim=s["head_dim"],
            num_kv_heads=s["n_kv_heads"],
            num_layers=s["n_layers"],
            intermediate_size=s["d_ff"] or s["d_ff_expert"],
            num_softmax_attn_layers=s["n_layers"],
            num_linear_attn_layers=0,
            num_full_attn_layers=s["n_layers"] - near,
            num_sliding_window_layers=near,
            sliding_window=s["window"],
            _gdn_layer_params=lambda: 0,
            linear_attn_flops=lambda _: 0,
        )
        its.attn_flops = lambda *a, **k: found.attn_flops(its, *a, **k)
        its.mlp_flops = lambda n: found.mlp_flops(its, n)
        if name == "prefill_flops":
            return found.prefill_flops(its, [s["seq_len"]] * s["batch_size"])
        if name == "kv_cache_write_bytes":
            return found.kv_cache_write_bytes(its, tokens(s), s["bytes_per_value"])
        return found._calculate_num_params(its)

    return call


def analysis(name: str) -> Callable[[Path, Sizes], Any]:
    parts = (
        "get_num_params_embedding",
        "get_num_params_per_layer_attn",
        "get_num_params_per_layer",
        "get_num_params_per_layer_mlp",
        "get_num_params_per_layer_router",
        "get_num_params_per_layer_layernorm",
        "get_num_params_last_layernorm",
        "get_num_active_params_per_layer",
        "get_num_flops_fwd_per_layer_attn",
        "get_num_flops_fwd_per_layer_mlp",
        "get_num_flops_fwd_per_layer",
    )

    def call(file: Path, s: Sizes) -> Any:
        quiet = Args(debug=lambda _: None, info=lambda _: None)
        found = lifted(
            file,
            *parts,
            name,
            logger=quiet,
            _num_to_string=str,
            within_range=lambda *_: True,
            TOLERANCE=0,
            BITS_PER_BYTE=8,
        )
        width = s["d_ff"] or s["d_ff_expert"]
        its = Args(
            hidden_dim=s["d_model"],
            vocab_size=s["vocab_size"],
            n_head=s["n_heads"],
            num_key_value_heads=s["n_kv_heads"],
            num_layers=s["n_layers"],
            ffn_embed_dim=width,
            mlp_gated_linear_units=s["gated"],
            moe_num_experts=s["n_experts"] or 1,
            moe_top_k=s["top_k"] or 1,
            expansion_ratio=width / s["d_model"],
            num_key_value_groups=s["n_heads"] / s["n_kv_heads"],
        )
        stand_in = Args(model_config=its, parallelism_config=Args(tp_size=1))
        for part in parts:
            setattr(stand_in, part, partial(getattr(found, part), stand_in))
        called = getattr(found, name)
        if name == "get_num_flops_fwd_total":
            return called(stand_in, s["batch_size"], s["seq_len"])
        if name == "get_memory_kv_cache_per_layer":
            one = called(stand_in, s["batch_size"], s["seq_len"], s["bytes_per_value"])
            return one * s["n_layers"]
        return called(stand_in)

    return call
