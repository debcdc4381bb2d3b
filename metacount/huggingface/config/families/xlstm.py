"""xLSTM: blocks of an mLSTM and a gated feed-forward, as xLSTM-7b has them."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import divided

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

MULTIPLE = 64  # transformers' cache rounds both widths of a layer up to it; its layers do not


def xlstm(keys: Keys) -> Json:
    """Read a config of xLSTM (arXiv:2503.13427): mLSTM alone, no attention, no positions."""
    d_model, n_layers = keys.size("hidden_size"), keys.layers("num_hidden_layers")
    n_heads, chunk = keys.size("num_heads"), keys.size("chunk_size", lowest=2)
    keys.fixed("embedding_dim", d_model)
    keys.fixed("num_blocks", n_layers)
    keys.only("use_bias", False)  # an RMSNorm would have one, too
    keys.only("weight_mode", "single", why="transformers fails to initialise fused matrices")
    keys.only("mode", "inference", why="transformers runs any length in inference mode alone")
    for name, value in (("add_qk_norm", False), ("add_post_norm", False)):
        keys.fixed(name, value)  # of checkpoints older than transformers' class
    keys.fixed("add_post_blocks_norm", True)
    if not keys.flag("add_out_norm"):
        keys.notes.append("add_out_norm: transformers' class has that norm in any case")
    if keys.size("max_inference_chunksize") % chunk:
        keys.unmapped(
            "max_inference_chunksize",
            keys.raw("max_inference_chunksize"),
            f"choose a multiple of chunk_size = {chunk}",
        )
    keys_width = width(keys, "qk_dim_factor", d_model, n_heads)
    values_width = width(keys, "v_dim_factor", d_model, n_heads)
    keys.fixed("head_dim", values_width)
    d_ff = rounded_up(
        d_model * keys.number("ffn_proj_factor"), keys.size("ffn_round_up_to_multiple_of")
    )
    return {
        "kind": "decoder",
        "d_model": d_model,
        "n_layers": n_layers,
        "vocab_size": keys.size("vocab_size"),
        "tie_embeddings": keys.only("tie_word_embeddings", False, why="transformers never ties it"),
        "logit_softcap": keys.number("output_logit_soft_cap"),
        "attention": "none",
        "recurrent": "mlstm",
        "mixer_pattern": "R",
        "n_linear_heads": n_heads,
        "linear_k_head_dim": keys_width,
        "linear_v_head_dim": values_width,
        "linear_chunk_size": chunk,
        "mlstm_gate_softcap": keys.number("gate_soft_cap"),
        "mlstm_divisor_eps": keys.number("eps"),
        "d_ff": d_ff,
        "activation": "silu",
        "gated": True,
        "norm": "rmsnorm",
        "norm_eps": keys.number("norm_eps"),
        "position": "none",
    }


def rounded_up(width: float, multiple: int) -> int:
    """Round a width up to a multiple, as transformers does.

    >>> rounded_up(4096 * 2.667, 64)
    10944
    """
    return int((width + multiple - 1) // multiple * multiple)


def width(keys: Keys, name: str, d_model: int, n_heads: int) -> int:
    """Compute the width of one head, of all of them as a multiple of the model's width."""
    exact = d_model * keys.number(name)
    if int(exact) < 1 or int(exact) != rounded_up(exact, MULTIPLE):
        raise SpecError(
            name,
            f"times hidden_size must be a multiple of {MULTIPLE}: {exact:g}",
            keys.raw(name),
            "transformers' cache is rounded up to one, its layers are not",
        )
    return divided("num_heads", int(exact), n_heads)


FAMILIES = {
    "xlstm": decoder(
        "xLSTM",
        xlstm,
        {
            "vocab_size": 50304,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_heads": 8,
            "use_bias": False,
            "tie_word_embeddings": False,
            "add_out_norm": True,
            "norm_eps": 1e-6,
            "qk_dim_factor": 0.5,
            "v_dim_factor": 1.0,
            "mode": "inference",
            "chunk_size": 64,
            "eps": 1e-6,
            "ffn_proj_factor": 2.667,
            "ffn_round_up_to_multiple_of": 64,
            "gate_soft_cap": 15.0,
            "output_logit_soft_cap": 30.0,
            "weight_mode": "single",
            "max_inference_chunksize": 16384,
        },
        # which kernel computes, in which type; whether states are returned, which inference does
        ignored="chunkwise_kernel sequence_kernel step_kernel autocast_kernel_dtype "
        "inference_state_dtype norm_reduction_force_float32 return_last_states "
        "forward_backend_name step_backend_name add_forward_backend_padding add_embedding_dropout "
        "force_bos_token_insert igate_bias_init_range mlstm_round_up_to_multiple_of cell_norm_eps",
    ),
}
