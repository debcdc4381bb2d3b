"""Every field of every part in one table, by its flat name: what files, JSON and `--set` say."""

from __future__ import annotations

from metacount.frozen import REQUIRED
from metacount.spec.embedding import Embedding, Head
from metacount.spec.field import Field, choice, declared, flag, one_of, size, where
from metacount.spec.mtp import MultiToken
from metacount.spec.position import POSITIONS
from metacount.spec.stack import KINDS, Encoder, Stack
from metacount.spec.tree import fields_of

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec.field import Place

# The order of flat names in files and in JSON; a name that is not here comes after these.
ORDER = (
    "kind", "d_model", "n_layers", "n_encoder_layers", "vocab_size", "tie_embeddings", "has_head",
    "head_bias", "n_token_types", "d_embedding", "head_transform", "head_transform_bias",
    "embedding_norm", "pooler", "embedding_scale", "residual_scale", "logit_scale",
    "residual_weight",
    "logit_softcap", "attention", "n_heads", "n_kv_heads", "head_dim", "q_bias", "k_bias",
    "v_bias", "o_bias", "qk_norm", "attention_sinks", "attention_scale", "attention_softcap",
    "output_gate", "v_norm", "n_kv_shared_layers",
    "window", "window_kind", "window_pattern", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "v_head_dim", "mla_bias", "latent_norm_eps", "scaled_latents",
    "index_top_k",
    "n_index_heads", "index_head_dim", "index_block_len", "index_top_blocks",
    "index_local_blocks", "index_pattern", "recurrent",
    "mixer_pattern", "ffn_pattern", "d_ff", "d_ff_second", "d_ff_pattern", "activation",
    "gated", "ffn_bias", "swish_beta", "activation_sparsity", "sparsity_pattern",
    "n_altup_inputs", "altup_active", "laurel_rank", "d_per_layer", "vocab_size_per_layer",
    "n_experts", "top_k", "d_ff_expert", "n_dense_layers",
    "moe_every", "moe_offset", "n_shared_experts", "d_ff_shared", "shared_expert_gate",
    "n_zero_experts", "zero_expert_rows", "router",
    "router_bias", "selection_bias", "n_groups", "top_groups", "group_score", "routed_scale",
    "mixer_jitter", "router_scales_input", "expert_bias", "norm", "norm_bias", "norm_affine",
    "norm_unit_offset", "norm_placement", "norm_eps", "final_norm", "first_norm", "position",
    "n_positions", "position_offset", "n_query_positions", "rotary_dim", "rope_theta",
    "rope_theta_windowed", "rope_style", "nope_every", "rope_scaling", "rope_scaling_windowed",
    "query_growth", "alibi_scale", "sinusoid_style", "n_buckets", "max_distance",
)  # fmt: skip

ROOT: dict[str, Field | Place] = {
    "kind": choice("kind", "the stacks a model has and what its tokens see", *KINDS),
    "d_model": size(
        "d_model",
        "d",
        "residual width",
        "values",
        "hidden_size n_embd dim hidden_dim model_dim embed_dim embedding_length n_embed",
    ),
    "embedding": where("vocab_size", Embedding, "without vocab_size", default=None),
    "head": where(
        "has_head",
        Head,
        "without a head",
        flag("has_head", "an output head over the vocabulary", default=True),
        default=None,
    ),
    "prediction": where("n_mtp_layers", MultiToken, "without n_mtp_layers", default=None),
    "pooler": flag("pooler", "a dense layer with tanh over the first token (BERT)", default=False),
    "positions": one_of(choice("position", "how the model knows positions"), *POSITIONS),
}


def _fields() -> tuple[dict[str, Field], dict[str, str]]:
    """Return every flat name's field, in order, and the path of each in a model with a decoder."""
    root = type("Root", (), {"__declared__": ROOT})
    found = {field.name: (path, field) for path, field in fields_of(Stack, "decoder.")}
    depth = declared(Encoder)["n_layers"]
    assert isinstance(depth, Field)  # a size
    found["n_encoder_layers"] = ("encoder.n_layers", depth)
    found |= {field.name: (path, field) for path, field in fields_of(root)}
    names = [*(name for name in ORDER if name in found), *(n for n in found if n not in ORDER)]
    return {name: found[name][1] for name in names}, {name: found[name][0] for name in names}


def every_path() -> dict[str, Field]:
    """Map every path of any model to a field; a few paths lead to another in another model."""
    root = type("Root", (), {"__declared__": ROOT})
    stacks = (("encoder.", Encoder), ("decoder.", Stack))
    below = {path: field for name, kind in stacks for path, field in fields_of(kind, name)}
    return {**dict(fields_of(root)), **below}


FIELDS, PATHS = _fields()
PARTS = {"embedding", "head", "positions", "encoder", "decoder", "prediction"}
REQUIRED_NAMES = tuple(
    name
    for name, field in FIELDS.items()
    if field.asked or (field.default is REQUIRED and not field.lacking)
)
DEFAULTS = {name: field.absent for name, field in FIELDS.items()}
RECORDS = {name: field.made for name, field in FIELDS.items() if field.made is not None}
CHOICES = {name: field.choices for name, field in FIELDS.items() if field.choices}
LIMITS = {name: field.most for name, field in FIELDS.items() if field.takes == "whole"}
