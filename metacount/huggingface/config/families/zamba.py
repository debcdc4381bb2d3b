"""Zamba2: Mamba-2 layers, and blocks of attention and feed-forward that many of them share."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.state_space import STEPS, expanded, without_idle
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import rope, shortest_period

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any

# What a layer is called, today and in older configs -> the letter of its mixer.
LAYERS = {"linear_attention": "R", "mamba": "R", "hybrid": "S"}
# The layers of Zamba2-2.7B, which transformers takes where there is no list.
BY_DEFAULT = "R" + "RRRRRS" * 7 + "RRRRS" + "RRRS" + "RR"
UNLIMITED: tuple[object, ...] = ([0.0, float("inf")], [0.0, {"__float__": "Infinity"}])


def zamba2(keys: Keys) -> dict[str, Any]:
    """Read a config of Zamba2 (arXiv:2411.15242):
    shared blocks read the hidden state beside the embedding.
    """
    d_model, bias = keys.size("hidden_size"), keys.flag("add_bias_linear")
    letters = layer_letters(keys)
    keys.fixed("time_step_limit", *UNLIMITED)  # of the class's first version
    fields = {
        "kind": "decoder",
        "d_model": d_model,
        "n_layers": len(letters),
        "vocab_size": keys.size("vocab_size"),
        "tie_embeddings": keys.flag("tie_word_embeddings"),
        **attention(keys, d_model),
        **feed_forward(keys, d_model),
        "ffn_bias": bias,
        "norm": "rmsnorm",
        "norm_eps": keys.number("rms_norm_eps"),
        **mixer(keys, expanded(keys, "mamba_expand", d_model)),
        "ssm_in_bias": bias,
        "ssm_out_bias": bias,
        "ssm_norm_eps": 1e-5,
        "ssm_dt_min": keys.number("time_step_min"),
        "mixer_pattern": shortest_period(letters),
        "ffn_pattern": "N",
    }
    stored, uses = keys.layers("num_mem_blocks"), letters.count("S")
    if not uses:
        return without_idle(fields)
    if uses > stored and not fields["tie_embeddings"]:
        # its class ties what it shares only where the head is tied: each use stores a block then
        keys.unmapped(
            "tie_word_embeddings",
            False,
            "transformers stores a shared block once only with a tied head: remove it",
        )
    return {
        **fields,
        "n_shared_blocks": min(stored, uses),  # the others are never made
        "adapter_rank": keys.size("adapter_rank"),
        "attention_adapters": keys.flag("use_shared_attention_adapter"),
    }


def mixer(keys: Keys, d_inner: int) -> dict[str, Any]:
    """Read a Mamba-2 mixer whose heads share `d_inner` channels; its convolution has a bias."""
    n_heads = keys.size("n_mamba_heads")
    if d_inner % n_heads:
        raise SpecError(
            "n_mamba_heads", f"must divide the {d_inner} channels", n_heads, "change one of the two"
        )
    keys.agrees("mamba_headdim", d_inner // n_heads)
    return {
        "recurrent": "mamba2",
        "n_ssm_heads": n_heads,
        "ssm_head_dim": d_inner // n_heads,
        "n_ssm_groups": keys.size("mamba_ngroups"),
        "ssm_state_dim": keys.size("mamba_d_state", lowest=2),
        "conv_kernel": keys.size("mamba_d_conv"),
        "ssm_chunk_size": keys.size("chunk_size", lowest=2),
    }


def layer_letters(keys: Keys) -> str:
    """Write R for a layer of Mamba-2, S for one that uses a shared block."""
    keys.own_name("layers_block_type")
    names, n_layers = keys.raw("layers_block_type"), keys.layers("num_hidden_layers")
    if names is None:
        if n_layers != len(BY_DEFAULT):
            keys.unmapped(
                "num_hidden_layers",
                n_layers,
                f"without layers_block_type there are {len(BY_DEFAULT)} layers",
            )
        letters = BY_DEFAULT
    else:
        if not isinstance(names, list) or len(names) != n_layers:
            raise SpecError(
                "layers_block_type",
                f"must be a list of {n_layers} names",
                names,
                "give one name a layer",
            )
        for name in names:
            if name not in LAYERS:
                choices = ", ".join(LAYERS)
                keys.unmapped("layers_block_type", name, f"choose one of {choices}")
        letters = "".join(LAYERS[name] for name in names)
    keys.agrees("hybrid_layer_ids", [i for i, letter in enumerate(letters) if letter == "S"])
    return letters


def attention(keys: Keys, d_model: int) -> dict[str, Any]:
    """Read attention over both inputs:
    its query heads are together as wide as these, less any remainder.
    """
    n_heads = keys.size("num_attention_heads")
    given, head_dim = keys.optional_size("num_key_value_heads"), 2 * d_model // n_heads
    n_kv_heads = n_heads if given is None else given
    for name, value in (
        ("attention_hidden_size", 2 * d_model),
        ("attention_head_dim", head_dim),
        ("kv_channels", d_model // n_heads),
        ("num_query_groups", n_heads),
    ):
        keys.agrees(name, value)
    if keys.flag("use_shared_attention_adapter"):
        for name, n in (("num_attention_heads", n_heads), ("num_key_value_heads", n_kv_heads)):
            if n * head_dim != 2 * d_model:
                keys.unmapped(
                    name, n, f"adapters of attention give {2 * d_model} values, its heads others"
                )
    return {
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim": head_dim,
        "attention_scale": (head_dim / 2) ** -0.5,
        **positions(keys, head_dim),
    }


def positions(keys: Keys, head_dim: int) -> dict[str, Any]:
    """Read RoPE where `use_mem_rope` asks for it, else no positions."""
    rotated = rope(keys, head_dim)
    if keys.flag("use_long_context"):
        keys.differs("use_long_context rescales RoPE in some versions of transformers")
    return rotated if keys.flag("use_mem_rope") else {"position": "none"}


def feed_forward(keys: Keys, d_model: int) -> dict[str, Any]:
    """Read the gated feed-forward of a shared block, always with an adapter."""
    given = keys.optional_size("intermediate_size", lowest=0)
    d_ff = given or 4 * d_model
    keys.fixed("ffn_hidden_size", d_ff)
    keys.fixed("use_shared_mlp_adapter", True)
    return {"d_ff": d_ff, **keys.activation("hidden_act", gated=True)}


FAMILIES = {
    "zamba2": decoder(
        "Zamba2",
        zamba2,
        {
            "vocab_size": 32000,
            "hidden_size": 2560,
            "num_hidden_layers": len(BY_DEFAULT),
            "layers_block_type": None,
            "mamba_d_state": 64,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_ngroups": 1,
            "n_mamba_heads": 8,
            "chunk_size": 256,
            "time_step_min": 0.001,
            "add_bias_linear": False,
            "intermediate_size": None,
            "hidden_act": "gelu",
            "num_attention_heads": 32,
            "num_key_value_heads": None,
            "num_mem_blocks": 1,
            "use_shared_attention_adapter": False,
            "adapter_rank": 128,
            "use_mem_rope": False,
            "use_long_context": False,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
        },
        aliases={"layer_types": "layers_block_type", "head_dim": "attention_head_dim"},
        ignored=f"{STEPS} num_logits_to_keep use_conv_bias use_mem_eff_path",
    )
}
