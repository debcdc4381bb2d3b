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
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace as Args
from typing import Any, NamedTuple


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


Sizes = dict[str, Any]


class Function(NamedTuple):
    """A function: its project and file, the package and file that pip installs, and the call."""

    project: str | None
    file: str
    call: Callable[[Path, Sizes], Any]
    package: str | None = None
    installed: str = ""


def tokens(s: Sizes) -> int:
    return int(s["batch_size"] * s["seq_len"])


def module(s: Sizes, **tables: int) -> Any:
    """A torch module on meta with as many parameters, its tables as embeddings."""
    import torch

    made = torch.nn.Module()
    for name, rows in tables.items():
        setattr(made, name, torch.nn.Embedding(rows, s["d_model"], device="meta"))
    rest = s["stored_params"] - sum(tables.values()) * s["d_model"]
    made.rest = torch.nn.Parameter(torch.empty(rest, device="meta"))
    return made


# --- Megatron-LM, Megatron-Bridge
def never(*names: str) -> dict[str, Any]:
    """Functions of these names that say no: none of these kinds of model is asked about."""
    return {name: lambda *_: False for name in names}


LINEAR = ("is_gated_delta_net_variant", "is_linear_attention_variant", "is_hybrid_model")


def megatron(file: Path, s: Sizes) -> Any:
    called = lifted(
        file, "num_floating_point_operations", **never(*LINEAR)
    ).num_floating_point_operations
    return called(megatron_args(s), s["batch_size"])


def megatron_params(name: str) -> Callable[[Path, Sizes], Any]:
    def call(file: Path, s: Sizes) -> Any:
        called = lifted(file, "compute_weight_and_optimizer_memory").space
        return locals_of(called["compute_weight_and_optimizer_memory"], megatron_args(s))[name]

    return call


def bridge(file: Path, s: Sizes) -> Any:
    its = megatron_args(s)
    its.vocab_size, its.make_vocab_size_divisible_by = s["vocab_size"], 1
    cfg = Unset(model=its, dataset=Unset(), train=Unset())
    helpers = {
        "calculate_padded_vocab_size": lambda n, *_, **__: n,
        "torch": Unset(Tensor=Unset),
        "LoRA": Unset,
        "_get_vision_config": lambda _: None,
        **never(*LINEAR),
    }
    called = lifted(file, "num_floating_point_operations", **helpers).num_floating_point_operations
    return called(cfg, s["batch_size"])


def olmo_core(file: Path, s: Sizes) -> Any:
    import torch

    def part(n: int, **more: Any) -> Args:
        return Args(parameters=lambda: [torch.empty(n, device="meta")], **more)

    root = file.parents[1]
    attention = lifted(root / "attention" / "__init__.py", "Attention.num_flops_per_token")
    plain = lifted(root / "feed_forward.py", "FeedForward.num_flops_per_token")
    last = lifted(root / "lm_head.py", "LMHead.num_flops_per_token")
    block = lifted(root / "transformer" / "block.py", "TransformerBlock.num_flops_per_token")
    whole = lifted(
        file,
        "Transformer.num_flops_per_token",
        cast=lambda _, x: x,
        List=list,
        TransformerBlockBase=None,
    )
    heads = s["d_model"] * s["head_dim"] * 2 * (s["n_heads"] + s["n_kv_heads"])
    norms = s["qk_norm_params"] // s["n_layers"]
    mixer = part(heads + norms, window_size=None, n_heads=s["n_heads"], head_dim=s["head_dim"])
    mixer.num_flops_per_token = lambda n: attention.num_flops_per_token(mixer, n)
    ffn = part(3 * s["d_model"] * s["d_ff"])
    ffn.num_flops_per_token = lambda n: plain.num_flops_per_token(ffn, n)
    head = part(s["d_model"] * (s["vocab_size"] + 1))
    head.num_flops_per_token = lambda n: last.num_flops_per_token(head, n)
    one = Args(attention=mixer, feed_forward=ffn)
    one.num_flops_per_token = lambda n: block.num_flops_per_token(one, n)
    model = Args(blocks={str(i): one for i in range(s["n_layers"])}, lm_head=head)
    return whole.num_flops_per_token(model, s["seq_len"]) * tokens(s)


# --- NeMo, NeMo-RL
NEMO = {
    "hs": "d_model",
    "layers": "n_layers",
    "enc_seq_len": "seq_len",
    "gbs": "batch_size",
    "attention_heads": "n_heads",
    "query_groups": "n_kv_heads",
    "vocab_size": "vocab_size",
    "moe_router_topk": "top_k",
    "moe_ffn_hidden_size": "d_ff_expert",
    "head_dim": "head_dim",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "v_head_dim": "v_head_dim",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
}


def nemo(name: str) -> Callable[[Path, Sizes], Any]:
    def call(file: Path, s: Sizes) -> Any:
        families = dict.fromkeys(("gpt3", "llama2", "llama3", "mixtral"), s["vocab_size"])
        given = {theirs: s[ours] for theirs, ours in NEMO.items()}
        dense = s["n_dense_layers"]
        freq = [int(i >= dense) for i in range(s["n_layers"])]
        args = Unset(
            ffn_hs=s["d_ff"] or s["d_ff_expert"],
            causal_self_attn=True,
            moe_layer_freq=freq,
            moe_shared_expert_intermediate_size=shared(s),
            **given,
        )
        return getattr(lifted(file, name, LLM_VOCAB_SIZE_MAP=families), name)(args)

    return call


# --- MaxText
class Blocks:
    """A name for every kind of decoder block."""

    def __getattr__(self, name: str) -> str:
        return name


MAXTEXT = (
    "calculate_tflops_training_per_device",
    "calculate_ffn_mamtul_tflops_per_device",
    "calculate_mla_tflops_per_device",
    "calculate_gemma2_tflops_training_per_device",
    "calculate_mixed_attention_model_tflops_training_per_device",
    "get_dense_moe_layers",
    "calculate_routed_and_shared_ffn_tflops_per_device",
    "get_shared_expert_mlp_dim",
)


def maxtext(block: str) -> Callable[[Path, Sizes], Any]:
    def call(file: Path, s: Sizes) -> Any:
        halves = 2 if block == "GEMMA2" else 1
        args = Unset(
            decoder_block=block,
            num_experts=s["n_experts"] or 1,
            per_device_batch_size=s["batch_size"],
            max_target_length=s["seq_len"],
            emb_dim=s["d_model"],
            mlp_dim=s["d_ff"],
            moe_mlp_dim=s["d_ff_expert"],
            num_experts_per_tok=s["top_k"],
            vocab_size=s["vocab_size"],
            num_query_heads=s["n_heads"],
            num_kv_heads=s["n_kv_heads"],
            head_dim=s["head_dim"],
            num_decoder_layers=s["n_layers"] // halves,
            mlp_activations=[""] * (1 + s["gated"]),
            attention_type=s["attention"],
            sliding_window_size=s["window"],
            shared_experts=s["n_shared_experts"],
            first_num_dense_layers=s["n_dense_layers"],
            q_lora_rank=s["q_lora_rank"] or 0,
            kv_lora_rank=s["kv_lora_rank"],
            qk_nope_head_dim=s["qk_nope_head_dim"],
            qk_rope_head_dim=s["qk_rope_head_dim"],
            v_head_dim=s["v_head_dim"],
            mtp_num_layers=0,
            gradient_accumulation_steps=1,
        )
        found = lifted(file, *MAXTEXT, DecoderBlockType=Blocks())
        return found.calculate_tflops_training_per_device(args, log=False)[0] * 10**12

    return call


# --- Levanter
def levanter_self(s: Sizes) -> Args:
    return Args(
        hidden_dim=s["d_model"],
        intermediate_dim=s["d_ff"] or s["d_ff_expert"],
        num_layers=s["n_layers"],
        num_kv_heads=s["n_kv_heads"],
        num_heads=s["n_heads"],
        seq_len=s["seq_len"],
        mlp_scale=Fraction(s["d_ff"] or 0, s["d_model"]),
        n_routed_experts=s["n_experts"],
        n_shared_experts=s["n_shared_experts"],
        num_experts_per_tok=s["top_k"],
        actual_head_size=s["head_dim"],
        hybrid_norm=False,
        input_embedding_norm=False,
        tie_word_embeddings=s["tie_embeddings"],
    )


def levanter(file: Path, s: Sizes) -> Any:
    per_token = lifted(file.parents[1] / "utils" / "flop_utils.py", "lm_flops_per_token")
    called = lifted(file, "flops_per_token", lm_flops_per_token=per_token.lm_flops_per_token)
    return called.flops_per_token(levanter_self(s), s["vocab_size"]) * tokens(s)


def levanter_params(file: Path, s: Sizes) -> Any:
    called = lifted(file, "total_trainable_params").total_trainable_params
    return called(levanter_self(s), s["vocab_size"])


# --- litgpt, TinyLlama, llm-foundry, picotron, nanotron, modalities, OLMo, Lingua, accelerate
def litgpt(file: Path, s: Sizes) -> Any:
    found = lifted(file, "num_parameters", "flops_per_param", "estimate_flops")
    model = module(s)
    model.max_seq_length = s["seq_len"]
    model.config = Args(n_layer=s["n_layers"], n_embd=s["d_model"])
    return found.estimate_flops(model, training=True) * s["batch_size"]


def tinyllama(file: Path, s: Sizes) -> Any:
    count = lifted(file.parent / "utils.py", "num_parameters").num_parameters
    found = lifted(file, "flops_per_param", "estimate_flops", num_parameters=count)
    model = module(s).train()
    model.config = Args(n_layer=s["n_layers"], n_embd=s["d_model"], block_size=s["seq_len"])
    return found.estimate_flops(model) * s["batch_size"]


def foundry(file: Path, s: Sizes) -> Any:
    found = lifted(file, "get_attention_flops", "flops_per_batch")
    its = Args(n_layers=s["n_layers"], d_model=s["d_model"], block_overrides=None)
    stand_in = Args(model=Args(config=its), n_active_params=s["active_params"])
    stand_in.get_attention_flops = lambda n: found.get_attention_flops(stand_in, n)
    return found.flops_per_batch(
        stand_in, {"input_ids": Args(shape=(s["batch_size"], s["seq_len"]))}
    )


def picotron(file: Path, s: Sizes) -> Any:
    its = Args(
        num_hidden_layers=s["n_layers"],
        hidden_size=s["d_model"],
        max_position_embeddings=s["seq_len"],
    )
    called = lifted(file, "get_mfu").get_mfu
    return locals_of(called, 1, s["stored_params"], its)["flops_per_token"] * tokens(s)


def nanotron(file: Path, s: Sizes) -> Any:
    return lifted(file, "get_flops").get_flops(
        s["n_layers"],
        s["d_model"],
        s["n_heads"],
        s["n_kv_heads"],
        s["vocab_size"],
        s["seq_len"],
        s["d_ff"] or s["d_ff_expert"],
        s["batch_size"],
    )[0]


def modalities(file: Path, s: Sizes) -> Any:
    called = lifted(file, "_get_theoretical_flops_per_token")._get_theoretical_flops_per_token
    return called(s["stored_params"], s["n_layers"], s["seq_len"], s["d_model"]) * tokens(s)


def lingua(file: Path, s: Sizes) -> Any:
    found = lifted(file, "attention_flops_per_token", "get_num_flop_per_token")
    rest = s["stored_params"] - s["vocab_size"] * s["d_model"]
    return found.get_num_flop_per_token(rest, s["n_layers"], s["d_model"], s["seq_len"]) * tokens(s)


def olmo(*names: str) -> Callable[[Path, Sizes], Any]:
    def call(file: Path, s: Sizes) -> Any:
        found = lifted(file, *names)
        counts = {True: s["stored_params"], False: s["stored_params"] - s["token_table"]}
        total = 0
        for name in names:
            its = Args(
                n_layers=s["n_layers"], d_model=s["d_model"], max_sequence_length=s["seq_len"]
            )
            stand_in = Unset(
                config=its, num_params=lambda include_embedding=True: counts[include_embedding]
            )
            for hidden in ("__num_fwd_flops", "__num_bck_flops"):
                setattr(stand_in, hidden, None)
            total += getattr(found, name)(stand_in)
        return total * tokens(s)

    return call


def accelerate(file: Path, s: Sizes) -> Any:
    called = lifted(file, "get_model_flops_per_token").get_model_flops_per_token
    return called(Args(config=config(s)), s["seq_len"]) * tokens(s)


def xtuner(file: Path, s: Sizes) -> Any:
    found = lifted(file, "after_train_iter", get_sequence_parallel_world_size=lambda: 1)
    hub = Args(get_scalar=lambda _: Args(current=lambda: 1.0), update_scalar=lambda *_: None)
    stand_in = Args(
        _get_batch_size_and_sequence_len=lambda _: (s["batch_size"], s["seq_len"]),
        hidden_size=s["d_model"],
        num_layers=s["n_layers"],
        vocab_size=s["vocab_size"],
        mlp_ratio=(s["d_ff"] or s["d_ff_expert"]) / s["d_model"] * 1.5,
        is_casual=True,
        use_activation_checkpointing=False,
    )
    given = locals_of(found.after_train_iter, stand_in, Args(message_hub=hub), 0)
    return given["flops_per_iteration"]


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


# --- which function stands behind each formula of `metacount audit`, and how it is called
NANOCHAT = ("karpathy/nanochat", "nanochat/gpt.py")
COOK = "EleutherAI/cookbook"
VERL = ("volcengine/verl", "verl/utils/flops_counter.py")
VEOMNI = ("ByteDance-Seed/VeOmni", "veomni/utils/count_flops.py")
MAXTEXT_FILE = ("AI-Hypercomputer/maxtext", "src/maxtext/utils/maxtext_utils.py")
NEMO_FILE = ("NVIDIA/NeMo", "nemo/utils/flops_formulas.py")
NEMO_RL_FILE = ("NVIDIA-NeMo/RL", "nemo_rl/utils/flops_formulas.py")
LEVANTER = "stanford-crfm/levanter"
ANALYSIS = ("cli99/llm-analysis", "llm_analysis/analysis.py")
TITAN = ("pytorch/torchtitan", "torchtitan/models/utils.py")
INSTRUCT = ("allenai/open-instruct", "open_instruct/utils.py")
MEMORY = ("NVIDIA/Megatron-LM", "megatron/training/theoretical_memory_usage.py")


def _levanter(name: str, call: Callable[[Path, Sizes], Any]) -> Function:
    return Function(LEVANTER, f"src/levanter/models/{name}.py", call)


def _verl(name: str) -> Function:
    return Function(*VERL, verl(name), "verl", VERL[1])


def _analysis(name: str) -> Function:
    return Function(*ANALYSIS, analysis(name))


def _titan(call: Callable[[Path, Sizes], Any]) -> Function:
    return Function(*TITAN, call, "torchtitan", TITAN[1])


FUNCTIONS: dict[str, Function] = {
    "megatron-lm-training": Function(
        "NVIDIA/Megatron-LM", "megatron/training/training.py", megatron
    ),
    "megatron-lm-params": Function(*MEMORY, megatron_params("num_total_parameters")),
    "megatron-lm-active-params": Function(*MEMORY, megatron_params("num_active_parameters")),
    "megatron-bridge-training": Function(
        "NVIDIA-NeMo/Megatron-Bridge", "src/megatron/bridge/training/utils/flop_utils.py", bridge
    ),
    "olmo-core-training": Function(
        "allenai/OLMo-core", "src/olmo_core/nn/transformer/model.py", olmo_core
    ),
    "torchtitan-dense-training": _titan(titan_dense),
    "torchtitan-moe-training": _titan(titan_moe),
    **{
        f"nemo-{id}-training": Function(*NEMO_FILE, nemo(name))
        for id, name in (
            ("gpt3", "gpt3"),
            ("llama3", "llama3"),
            ("mixtral", "mixtral"),
            ("qwen3", "qwen3"),
            ("deepseek", "deepseekv3"),
            ("transformer", "transformer"),
        )
    },
    **{
        f"nemo-rl-{name}-training": Function(*NEMO_RL_FILE, nemo(name))
        for name in ("llama", "qwen2", "qwen3")
    },
    "maxtext-training": Function(*MAXTEXT_FILE, maxtext("LLAMA2")),
    "maxtext-deepseek-training": Function(*MAXTEXT_FILE, maxtext("DEEPSEEK")),
    "maxtext-gemma2-training": Function(*MAXTEXT_FILE, maxtext("GEMMA2")),
    "maxtext-gemma3-training": Function(*MAXTEXT_FILE, maxtext("GEMMA3")),
    "maxtext-gpt-oss-training": Function(*MAXTEXT_FILE, maxtext("GPT_OSS")),
    **{
        f"levanter-{name}-forward": _levanter(name, levanter)
        for name in ("llama", "gpt2", "gemma", "mistral", "mixtral")
    },
    **{
        f"levanter-{name}-params": _levanter(name, levanter_params) for name in ("llama", "mixtral")
    },
    "litgpt-training": Function(
        "Lightning-AI/litgpt", "litgpt/utils.py", litgpt, "litgpt", "litgpt/utils.py"
    ),
    "tinyllama-training": Function("jzhang38/TinyLlama", "lit_gpt/speed_monitor.py", tinyllama),
    "nanogpt-training": Function("karpathy/nanoGPT", "model.py", nanogpt),
    "nanochat-training": Function(*NANOCHAT, nanochat("estimate_flops")),
    "nanochat-prefill": Function(*NANOCHAT, nanochat("estimate_prefill_flops")),
    "nanochat-kv-cache": Function(*NANOCHAT, nanochat("kv_bytes_per_token")),
    **{
        f"eleuther-cookbook-{id}": Function(
            COOK,
            "calc/calc_transformer_flops.py",
            cookbook("calc_flops", "total_flops", infer=infer, checkpoint_activations=again),
        )
        for id, infer, again in (
            ("training", False, False),
            ("training-recompute", False, True),
            ("forward", True, False),
        )
    },
    "eleuther-cookbook-params": Function(
        COOK, "calc/calc_transformer_params.py", cookbook("calc_params", "total_params")
    ),
    "eleuther-cookbook-kv-cache": Function(
        COOK, "calc/calc_transformer_mem.py", cookbook("calc_mem", "kv_cache_mem", infer=True)
    ),
    "llm-foundry-training": Function(
        "mosaicml/llm-foundry",
        "llmfoundry/models/mpt/modeling_mpt.py",
        foundry,
        "llm-foundry",
        "llmfoundry/models/mpt/modeling_mpt.py",
    ),
    "picotron-training": Function("huggingface/picotron", "picotron/utils.py", picotron),
    "nanotron-training": Function(
        "huggingface/nanotron",
        "src/nanotron/models/llama.py",
        nanotron,
        "nanotron",
        "nanotron/models/llama.py",
    ),
    "modalities-training": Function(
        "Modalities/modalities",
        "src/modalities/utils/mfu.py",
        modalities,
        "modalities",
        "modalities/utils/mfu.py",
    ),
    "xtuner-training": Function(
        "InternLM/xtuner",
        "xtuner/engine/hooks/throughput_hook.py",
        xtuner,
        "xtuner",
        "xtuner/engine/hooks/throughput_hook.py",
    ),
    "accelerate-training": Function(
        "huggingface/accelerate", "examples/torch_native_parallelism/utils.py", accelerate
    ),
    "olmo-forward": Function("allenai/OLMo", "olmo/model.py", olmo("num_fwd_flops")),
    "olmo-training": Function(
        "allenai/OLMo", "olmo/model.py", olmo("num_fwd_flops", "num_bck_flops")
    ),
    "lingua-training": Function("facebookresearch/lingua", "apps/main/transformer.py", lingua),
    "transformers-training": Function(
        None, "", transformers, "transformers", "transformers/trainer.py"
    ),
    "trl-training": Function(None, "", trl, "trl", "trl/trainer/utils.py"),
    "verl-qwen2-training": _verl("_estimate_qwen2_flops"),
    "verl-qwen2-moe-training": _verl("_estimate_qwen2_moe_flops"),
    "verl-deepseek-training": _verl("_estimate_deepseek_v3_flops"),
    "verl-gemma3-training": _verl("_estimate_gemma3_flops"),
    "verl-gpt-oss-training": _verl("_estimate_gpt_oss_flops"),
    "veomni-qwen-training": Function(*VEOMNI, veomni("_compute_qwen_dense_text_flops", raw=True)),
    "veomni-qwen3-moe-training": Function(
        *VEOMNI, veomni("_compute_qwen3_moe_text_flops", raw=True)
    ),
    "veomni-llama-training": Function(*VEOMNI, veomni("_estimate_llama_flops")),
    "veomni-deepseek-training": Function(*VEOMNI, veomni("_estimate_deepseek_v3_flops")),
    "prime-rl-training": Function(
        "PrimeIntellect-ai/prime-rl", "src/prime_rl/trainer/perf.py", prime
    ),
    "prime-rl-deepseek-training": Function(
        "PrimeIntellect-ai/prime-rl", "src/prime_rl/trainer/perf.py", prime
    ),
    "slime-forward": Function("THUDM/slime", "slime/utils/flops_utils.py", slime),
    "open-instruct-prefill": Function(*INSTRUCT, instruct("prefill_flops")),
    "open-instruct-params": Function(*INSTRUCT, instruct("_calculate_num_params")),
    "open-instruct-kv-cache": Function(*INSTRUCT, instruct("kv_cache_write_bytes")),
    "llm-analysis-params": _analysis("get_num_params_total"),
    "llm-analysis-active-params": _analysis("get_num_active_params_total"),
    "llm-analysis-forward": _analysis("get_num_flops_fwd_total"),
    "llm-analysis-kv-cache": _analysis("get_memory_kv_cache_per_layer"),
}


def main() -> None:
    """Call every function that can be had at every case, and write what it gives."""
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
