"""How each framework's function is called at the sizes of a model: one row for each formula."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace as Args
from typing import Any, NamedTuple

from framework_calls import Unset, config, lifted, locals_of, megatron_args, shared

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
