"""GPT-2 and its descendants: LayerNorm with bias and two FFN matrices, with and without RoPE."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import biases, divided, rope, sizes, windows
from metacount.spec.field import MAX_LAYERS

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

CODEGEN_PARTS = 4  # the fused projection is laid out for four accelerators


def named(keys: Keys, width: str, layers: str, heads: str) -> Json:
    """Read the sizes under other names; as many key/value heads as query heads."""
    d_model, n_heads = keys.size(width), keys.size(heads)
    return {
        "kind": "decoder",
        "d_model": d_model,
        "n_layers": keys.layers(layers),
        "vocab_size": keys.size("vocab_size"),
        "n_heads": n_heads,
        "n_kv_heads": n_heads,
        "head_dim": divided(heads, d_model, n_heads),
        "tie_embeddings": keys.flag("tie_word_embeddings"),
    }


def layer_norm(keys: Keys, eps: str) -> Json:
    """Read the fields of a LayerNorm with weight and bias."""
    return {"norm": "layernorm", "norm_bias": True, "norm_eps": keys.number(eps)}


def plain_ffn(keys: Keys, width: str, activation: str, d_model: int) -> Json:
    """Read an FFN of two matrices with biases;
    where its width is null it is four times the model's.
    """
    d_ff = keys.optional_size(width)
    return {
        "d_ff": 4 * d_model if d_ff is None else d_ff,
        **keys.activation(activation, gated=False),
        "ffn_bias": True,
    }


def gpt2(keys: Keys) -> Json:
    """Read a config of GPT-2 (Radford et al. 2019)."""
    fields = named(keys, "n_embd", "n_layer", "n_head")
    keys.only("scale_attn_by_inverse_layer_idx", False)
    return {
        **fields,
        **biases(True, True),
        "attention_scale": None if keys.flag("scale_attn_weights") else 1.0,
        **plain_ffn(keys, "n_inner", "activation_function", fields["d_model"]),
        **layer_norm(keys, "layer_norm_epsilon"),
        "position": "learned",
        "n_positions": keys.size("n_positions"),
    }


def gpt_bigcode(keys: Keys) -> Json:
    """Read a config of SantaCoder or StarCoder (arXiv:2305.06161):
    GPT-2 with one key/value head.
    """
    fields = named(keys, "n_embd", "n_layer", "n_head")
    single = keys.flag("multi_query")
    keys.agrees("num_key_value_heads", 1 if single else fields["n_heads"])
    if not single:
        keys.differs("without multi_query weights are GPT-2's by name, and laid out otherwise")
    return {
        **fields,
        "n_kv_heads": 1 if single else fields["n_heads"],
        **biases(True, True),
        "attention_scale": None if keys.flag("scale_attn_weights") else 1.0,
        **plain_ffn(keys, "n_inner", "activation_function", fields["d_model"]),
        **layer_norm(keys, "layer_norm_epsilon"),
        "position": "learned",
        "n_positions": keys.size("n_positions"),
    }


def _expanded(keys: Keys, n_layers: int) -> str:
    """Expand `attention_types`, [[kinds, repetitions], ...], to one letter a layer."""
    types = keys.raw("attention_types")
    wrong = SpecError(
        "attention_types",
        f'must be a list like [[["global", "local"], 6]] for {n_layers} layers',
        types,
        "give one kind for each layer",
    )
    letters = ""
    for part in types if isinstance(types, list) else [None]:
        if not isinstance(part, list) or len(part) != 2 or not isinstance(part[0], list):
            raise wrong
        kinds, times = part
        if isinstance(times, bool) or not isinstance(times, int) or not 0 <= times <= MAX_LAYERS:
            raise wrong
        if any(kind not in ("global", "local") for kind in kinds):
            raise wrong
        if len(letters) + len(kinds) * times > n_layers:
            raise wrong
        letters += "".join("GL"[kind == "local"] for kind in kinds) * times
    if len(letters) != n_layers:
        raise wrong
    keys.agrees("attention_layers", ["local" if letter == "L" else "global" for letter in letters])
    return letters


def gpt_neo(keys: Keys) -> Json:
    """Read a config of GPT-Neo: unscaled scores, every second layer with a window."""
    fields = named(keys, "hidden_size", "num_layers", "num_heads")
    return {
        **fields,
        **biases(False, True),
        "attention_scale": 1.0,
        **windows(_expanded(keys, fields["n_layers"]), keys.size("window_size")),
        **plain_ffn(keys, "intermediate_size", "activation_function", fields["d_model"]),
        **layer_norm(keys, "layer_norm_epsilon"),
        "position": "learned",
        "n_positions": keys.size("max_position_embeddings"),
    }


def gpt_neox(keys: Keys) -> Json:
    """Read a config of GPT-NeoX (arXiv:2204.06745):
    both branches at once, each behind a norm of its own.
    """
    fields = sizes(keys)
    bias = keys.flag("attention_bias")
    parallel = keys.flag("use_parallel_residual")
    # older configs have both names of each; transformers reads the second
    keys.fixed("partial_rotary_factor", keys.raw("rotary_pct"))
    keys.fixed("rope_theta", keys.raw("rotary_emb_base"))
    return {
        **fields,
        **biases(bias, bias),
        **plain_ffn(keys, "intermediate_size", "hidden_act", fields["d_model"]),
        **layer_norm(keys, "layer_norm_eps"),
        "norm_placement": "parallel_two" if parallel else "pre",
        **rope(keys, fields["head_dim"], theta="rotary_emb_base", partial="rotary_pct"),
    }


def gptj(keys: Keys) -> Json:
    """Read a config of GPT-J: both branches behind one norm;
    biases in the FFN and the head only.
    """
    fields = named(keys, "n_embd", "n_layer", "n_head")
    rotary_dim = keys.size("rotary_dim")
    return {
        **fields,
        "head_bias": True,
        **plain_ffn(keys, "n_inner", "activation_function", fields["d_model"]),
        **layer_norm(keys, "layer_norm_epsilon"),
        "norm_placement": "parallel",
        "position": "rope",
        "rope_style": "interleaved",
        "rotary_dim": None if rotary_dim == fields["head_dim"] else rotary_dim,
    }


def codegen(keys: Keys) -> Json:
    """Read a config of CodeGen (arXiv:2203.13474): GPT-J's block."""
    fields = gptj(keys)
    if fields["n_heads"] % CODEGEN_PARTS:
        raise SpecError(
            "n_head",
            f"must be a multiple of {CODEGEN_PARTS}",
            fields["n_heads"],
            f"choose {CODEGEN_PARTS} or a multiple of it",
        )
    return fields


def phi(keys: Keys) -> Json:
    """Read a config of Phi-1 to Phi-2: both branches behind one norm, biases everywhere."""
    fields = sizes(keys)
    return {
        **fields,
        "head_bias": True,
        **biases(True, True),
        "qk_norm": "layernorm" if keys.flag("qk_layernorm") else "none",
        **plain_ffn(keys, "intermediate_size", "hidden_act", fields["d_model"]),
        **layer_norm(keys, "layer_norm_eps"),
        "norm_placement": "parallel",
        **rope(keys, fields["head_dim"], rounds_up=False),
    }


def persimmon(keys: Keys) -> Json:
    """Read a config of Persimmon: squared ReLU and LayerNorm over each query and key head."""
    return {**phi(keys), "head_bias": False, "norm_placement": "pre"}


GPTJ: Json = {
    "vocab_size": 50400,
    "n_embd": 4096,
    "n_layer": 28,
    "n_head": 16,
    "n_inner": None,
    "rotary_dim": 64,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
}
GPT2_NAMES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
SUMMARY = (
    "summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout"
)

FAMILIES = {
    "gpt2": decoder("GPT2", gpt2, {
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
        "n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
        "tie_word_embeddings": True,
    }, head="GPT2LMHeadModel", aliases=GPT2_NAMES,
        ignored=f"n_ctx reorder_and_upcast_attn n_special predict_special_tokens {SUMMARY}"),
    "gpt_bigcode": decoder("GPTBigCode", gpt_bigcode, {
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
        "n_inner": None, "activation_function": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True, "multi_query": True, "tie_word_embeddings": True,
    }, aliases=GPT2_NAMES, ignored="attention_softmax_in_fp32 scale_attention_softmax_in_fp32 "
       f"inference_runner validate_runner_input pre_allocate_kv_cache max_batch_size {SUMMARY}"),
    "gpt_neo": decoder("GPTNeo", gpt_neo, {
        "vocab_size": 50257, "max_position_embeddings": 2048, "hidden_size": 2048,
        "num_layers": 24, "attention_types": [[["global", "local"], 12]], "num_heads": 16,
        "intermediate_size": None, "window_size": 256, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
    }, aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
        ignored=SUMMARY),
    "gpt_neox": decoder("GPTNeoX", gpt_neox, {
        "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44,
        "num_attention_heads": 64, "intermediate_size": 24576, "hidden_act": "gelu",
        "layer_norm_eps": 1e-5, "use_parallel_residual": True, "attention_bias": True,
        "tie_word_embeddings": False, "rotary_emb_base": 10000.0, "rotary_pct": 0.25,
    }, ignored="is_decoder"),
    "gptj": decoder("GPTJ", gptj, GPTJ, aliases=GPT2_NAMES, ignored=f"n_positions {SUMMARY}"),
    "codegen": decoder("CodeGen", codegen, GPTJ, aliases=GPT2_NAMES,
                       ignored=f"n_positions n_ctx {SUMMARY}"),
    "phi": decoder("Phi", phi, {
        "vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": None,
        "head_dim": None, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5,
        "qk_layernorm": False, "tie_word_embeddings": False, "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    }),
    "persimmon": decoder("Persimmon", persimmon, {
        "vocab_size": 262144, "hidden_size": 4096, "intermediate_size": 16384,
        "num_hidden_layers": 36, "num_attention_heads": 64, "hidden_act": "relu2",
        "layer_norm_eps": 1e-5, "qk_layernorm": True, "tie_word_embeddings": False,
        "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
    }),
}  # fmt: skip
