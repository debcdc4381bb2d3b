"""The legend: our name of each size, its letter, meaning and unit, and everyone else's spelling.

Foreign spellings live here alone. SymPy is imported only when symbols are asked for.
"""

from __future__ import annotations

from metacount.errors import SpecError, nearest
from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


@frozen
class Term:
    """One size. `elsewhere` are the names that papers, configurations and file formats give it."""

    name: str
    letter: str
    meaning: str
    unit: str
    elsewhere: tuple[str, ...]


def _term(name: str, letter: str, meaning: str, unit: str, elsewhere: str = "") -> Term:
    return Term(name=name, letter=letter, meaning=meaning, unit=unit,
                elsewhere=tuple(elsewhere.split()))  # fmt: skip


MODEL_TERMS = (
    _term("d_model", "d", "residual width", "values",
          "hidden_size n_embd dim hidden_dim model_dim embed_dim embedding_length n_embed"),
    _term("n_layers", "N", "blocks of the only stack, or of the decoder", "blocks",
          "num_hidden_layers n_layer num_layers block_count decoder_layers num_decoder_layers"),
    _term("n_encoder_layers", "N_e", "blocks of the encoder", "blocks",
          "encoder_layers num_encoder_layers num_layers"),
    _term("n_dense_layers", "N_0", "leading blocks with a dense FFN", "blocks",
          "first_k_dense_replace leading_dense_block_count moe_layer_start_index"),
    _term("vocab_size", "V", "embedding rows as stored, padding included", "rows",
          "padded_vocab_size vocabulary_size n_vocab"),
    _term("d_embedding", "d_e", "width of the tables, where it is not d_model", "values",
          "embedding_size embedding_dim"),
    _term("n_token_types", "V_t", "rows of the token-type (segment) table", "rows",
          "type_vocab_size"),
    _term("n_heads", "h", "query heads", "heads",
          "num_attention_heads n_head num_heads num_query_heads attention_heads head_count"
          " decoder_attention_heads encoder_attention_heads"),
    _term("n_kv_heads", "h_kv", "key/value heads", "heads",
          "num_key_value_heads num_kv_heads n_head_kv kv_n_heads num_query_groups n_query_groups"
          " multi_query_group_num head_count_kv"),
    _term("head_dim", "h_d", "width of one head", "values",
          "head_size d_head d_kv d_k kv_channels attention_head_size key_length"),
    _term("q_lora_rank", "r_q", "MLA: width of the query latent", "values"),
    _term("kv_lora_rank", "d_c", "MLA: width of the key/value latent", "values"),
    _term("qk_nope_head_dim", "d_n", "MLA: part of a query head without RoPE", "values"),
    _term("qk_rope_head_dim", "d_r", "MLA: part of a query head with RoPE", "values",
          "qk_pos_emb_head_dim"),
    _term("v_head_dim", "d_v", "MLA: width of a value head", "values", "value_length"),
    _term("d_ff", "m", "FFN hidden width, final (after the 2/3 rule and rounding)", "values",
          "intermediate_size n_inner inter_dim ffn_dim ffn_hidden_size hidden_dim intermediate_dim"
          " mlp_hidden_size feed_forward_length decoder_ffn_dim encoder_ffn_dim d_inner"
          " intermediate_size_mlp mlp_dim"),
    _term("d_ff_expert", "m_e", "hidden width of one expert", "values",
          "moe_intermediate_size moe_inter_dim moe_ffn_hidden_size expert_feed_forward_length"
          " intermediate_size ffn_hidden_size"),
    _term("d_ff_shared", "m_s", "hidden width of one shared expert", "values",
          "shared_expert_intermediate_size shared_intermediate_size"
          " moe_shared_expert_intermediate_size expert_shared_feed_forward_length"),
    _term("n_experts", "E", "routed experts of one layer", "experts",
          "num_local_experts n_routed_experts num_experts n_expert expert_count moe_num_experts"
          " num_moe_experts"),
    _term("n_shared_experts", "E_s", "experts that see every token", "experts",
          "num_shared_experts num_shared_expert moe_num_shared_experts expert_shared_count"),
    _term("top_k", "k", "routed experts per token", "experts",
          "num_experts_per_tok num_selected_experts n_activated_experts n_expert_per_token"
          " expert_used_count moe_top_k moe_topk moe_k moe_router_topk num_experts_per_token"),
    _term("moe_every", "s", "one MoE layer every so many", "blocks",
          "moe_layer_freq decoder_sparse_step encoder_sparse_step interleave_moe_layer_step"
          " expert_layer_period moe_layer_interval"),
    _term("n_groups", "G", "groups that the experts are divided into", "groups",
          "n_group n_expert_groups moe_router_num_groups expert_group_count"),
    _term("top_groups", "G_k", "groups that a token may use", "groups",
          "topk_group n_limited_groups moe_router_group_topk expert_group_used_count"),
    _term("window", "w", "positions that a windowed layer sees, itself included", "positions",
          "sliding_window window_size attention_chunk_size sliding_window_size"),
    _term("n_positions", "P", "rows of a learned position table, as stored", "rows",
          "max_position_embeddings n_ctx max_seq_len max_sequence_length context_length"
          " max_target_positions max_source_positions block_size"),
    _term("position_offset", "P_0", "rows of a learned position table before the first position",
          "rows"),
    _term("n_query_positions", "P_q", "rows of the query table of the last layer", "rows"),
    _term("rotary_dim", "d_rot", "values of a head that RoPE rotates", "values",
          "rotary_ndims rope_dim"),
    _term("moe_offset", "s_0", "shift of that pattern: blocks i with i + 1 - s_0 a multiple of s",
          "blocks"),
    _term("nope_every", "s_r", "one layer without RoPE every so many", "blocks",
          "no_rope_layer_interval"),
    _term("n_buckets", "b", "buckets of T5's relative positions", "buckets",
          "relative_attention_num_buckets relative_buckets_count"),
    _term("max_distance", "b_max", "distance from which T5's last bucket holds all", "positions",
          "relative_attention_max_distance"),
)  # fmt: skip

WORKLOAD_TERMS = (
    _term("batch_size", "B", "sequences", "sequences", "micro_batch_size batch bsz"),
    _term("seq_len", "S", "query positions of one sequence", "positions",
          "seq_length sequence_length q_len"),
    _term("kv_len", "T", "positions attended to", "positions", "kv_seq_len"),
    _term("source_len", "S_e", "tokens that an encoder reads", "positions",
          "src_len encoder_seq_length"),
    _term("prefix_len", "S_p", "first tokens that see each other in both directions", "positions"),
)  # fmt: skip

TERMS = MODEL_TERMS + WORKLOAD_TERMS

_BY_NAME = {term.name: term for term in TERMS}


def by_name(name: str) -> Term:
    """The legend's line for one of our names.

    >>> by_name("d_ff").letter
    'm'
    """
    if name not in _BY_NAME:
        found = ours(name)
        remedy = f"here it is {' or '.join(found)}" if found else nearest(
            str(name), _BY_NAME, f"choose one of {', '.join(_BY_NAME)}")  # fmt: skip
        raise SpecError("name", "is not in the legend", name, remedy)
    return _BY_NAME[name]


def ours(spelling: str) -> tuple[str, ...]:
    """Our names for a spelling, ours or foreign: one, several where others disagree, or none.

    >>> ours("num_attention_heads"), ours("d_model"), ours("frobnication")
    (('n_heads',), ('d_model',), ())
    >>> ours("hidden_dim")  # the residual width in Keras, the FFN's in Mistral's own code
    ('d_model', 'd_ff')
    """
    if spelling in _BY_NAME:
        return (spelling,)
    return tuple(term.name for term in TERMS if spelling in term.elsewhere)


def sympy_symbols(names: Iterable[str]) -> dict[str, Any]:
    """A positive-integer SymPy symbol, in the legend's letter, for each of our names.

    >>> sympy_symbols(["d_model", "n_kv_heads"])
    {'d_model': d, 'n_kv_heads': h_kv}
    """
    letters = {name: by_name(name).letter for name in names}
    from importlib import import_module

    sympy = import_module("sympy")  # takes longer than all else together: only when asked for
    return {name: sympy.Symbol(letter, integer=True, positive=True)
            for name, letter in letters.items()}  # fmt: skip
