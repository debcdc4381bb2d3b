"""What each statement of our modules computes, in one line: shown only where its operators ran.

A row is found by the class, the name that the statement binds (`return`; nothing for a module told
as one step) and the operators that ran, views and copies apart: all of the first must have run, and
none beside them and the second. What no row fits is shown by its operators.

The mixers that keep a state come first. The recurrence of a scan is told as one step where it runs
as one; where it runs in chunks, each of its products is a step. The state is the one that a chunk
or a step begins with.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from metacount.flow.steps import HIDDEN, Row, Seen
from metacount.modules.altup import Laurel, LayerInput, LayerInputs, LayerTable
from metacount.modules.attention import (
    Attention,
    BlockIndexer,
    BlockScores,
    BorrowingAttention,
    Indexer,
    IndexScores,
    ScaledDotProduct,
)
from metacount.modules.block import Block
from metacount.modules.convolution import CausalConv1d, ShortConvolution
from metacount.modules.delta import ForgetGate, GatedDelta, KimiDelta
from metacount.modules.ffn import FeedForward, GatedFeedForward
from metacount.modules.lightning import Lightning
from metacount.modules.linear import Linear, Table
from metacount.modules.mla import LatentAttention
from metacount.modules.mlstm import MLstm, MultiHeadNorm
from metacount.modules.model import (
    EmbeddingProjection,
    HeadTransform,
    Model,
    OutputHead,
    Pooler,
    PositionTable,
    Stack,
    TokenEmbedding,
    TypeTable,
)
from metacount.modules.moe import Experts, MixtureOfExperts, Router
from metacount.modules.norm import LayerNorm, RMSNorm
from metacount.modules.position import RelativeBias, RelativeProjection, RelativeScores
from metacount.modules.rg_lru import RecurrentBlock, RgLru
from metacount.modules.shared_block import SharedBlock
from metacount.modules.state_space import GatedNorm, Mamba, Mamba2
from metacount.notation import factor

# Names of projections: what they give, and the index of their matrix.
PROJECTIONS = {
    "q_proj": ("q", "q"),
    "k_proj": ("k", "k"),
    "v_proj": ("v", "v"),
    "o_proj": ("y", "o"),
    "out_proj": ("y", "o"),
    "gate_proj": ("gate", "gate"),
    "up_proj": ("up", "up"),
    "down_proj": ("y", "down"),
    "lm_head": ("logits", "head"),
    "q_a_proj": ("c_q", "DQ"),
    "q_b_proj": ("q", "UQ"),
    "kv_a_proj_with_mqa": ("[c, k_r]", "DKV"),
    "kv_b_proj": ("[k_n, v]", "UKV"),
    "r_proj": ("r", "r"),
}
PRODUCTS = frozenset(["mm", "bmm", "addmm", "mv", "addmv"])
BIASED = frozenset(["addmm", "addmv", "add"])
ELEMENTWISE: dict[str, str] = {
    "SiLU": "silu",
    "GELU": "gelu",
    "ReLU": "relu",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
    "Hardswish": "hardswish",
    "ReLU6": "relu6",
    "Mish": "mish",
}
NORMED = "(x − mean(x)) / √(var(x) + ε)"


def linear(seen: Seen) -> str | None:
    """Write the equation `q = x·W_qᵀ + b`, with the bias where one was added."""
    if not PRODUCTS & set(seen.operators) or set(seen.operators) - PRODUCTS - {"add"}:
        return None
    gives, index = PROJECTIONS.get(seen.name, ("y", ""))
    biased = not BIASED.isdisjoint(seen.operators)
    return f"{gives} = x·W{'_' + index if index else ''}ᵀ{' + b' if biased else ''}"


def _affine(seen: Seen, plain: str) -> str:
    module = seen.module
    scaled = f"{plain} · w" if getattr(module, "weight", None) is not None else plain
    return f"{scaled} + b" if getattr(module, "bias", None) is not None else scaled


def _ran(name: str, text: Callable[[Seen], str]) -> Callable[[Seen], str | None]:
    return lambda seen: text(seen) if seen.operators == (name,) else None


KNOWN: dict[type[nn.Module], Callable[[Seen], str | None]] = {
    nn.Linear: linear,
    nn.Embedding: _ran("embedding", lambda _: "y = row x of the table"),
    nn.LayerNorm: _ran("native_layer_norm", lambda seen: _affine(seen, f"y = {NORMED}")),
    nn.GroupNorm: _ran("native_group_norm", lambda seen: _affine(seen, f"y = {NORMED}")),
    nn.Conv1d: _ran("convolution", lambda seen: _affine(seen, "y = x ∗ W").replace(" · w", "")),
    nn.Conv2d: _ran("convolution", lambda seen: _affine(seen, "y = x ∗ W").replace(" · w", "")),
}


def of_torch(seen: Seen) -> str | None:
    """Write the equation of a module of torch's own; None for any other."""
    found = KNOWN.get(type(seen.module)) if not seen.gives else None
    if found is not None:
        return found(seen)
    word = ELEMENTWISE.get(type(seen.module).__name__)
    if word and not seen.gives and isinstance(seen.module, nn.Module) and len(seen.operators) == 1:
        return f"y = {word}(x)" if type(seen.module).__module__.startswith("torch.nn.") else None
    return None


TURNS = "div neg reciprocal index"  # beside what rotates
CUT = "positions cut into chunks, the last one filled up with zeros"


def _conv(seen: Seen) -> str:
    module = seen.module
    width: int = module.kernel_size[0]
    return f"each channel's sum over {width} positions, itself and those before it"


def _conv_continued(seen: Seen) -> str:
    return f"{_conv(seen)}, which were kept"


def _gated_norm(seen: Seen) -> str:
    module = seen.module
    parts = "" if module.n_groups == 1 else f" of each of {module.n_groups} groups"
    if module.before_gate:
        return f"y = x / √(mean(x²) + ε){parts} · w · silu(z)"
    return f"x = x · silu(z), y = x / √(mean(x²) + ε){parts} · w"


def _rate_of_heads(seen: Seen) -> str:
    return f"rate = 2^(−8·head / {seen.module.n_heads}) · {seen.module.slowed:.4g}"


def _capped_gate(seen: Seen) -> str:
    cap, gate = seen.module.gate_softcap, seen.gives[0]
    return f"{gate} = {cap:g}·tanh({gate} / {cap:g})"


def _clamped(seen: Seen) -> str:
    low, high = seen.module.steps
    below = [] if low is None else [f"at least {low:g}"]
    above = [] if high is None else [f"at most {high:g}"]
    return f"Δ {', '.join(below + above)}"


def _top_values(seen: Seen) -> str:
    share: float = seen.module.sparsity
    return f"gate = relu(gate − its quantile of {share:g}, taken as normal)"


# A class whose statements are those of another.
SAME_ROWS: dict[type, type] = {BorrowingAttention: Attention}
MIXERS: tuple[Row, ...] = (
    # latents that LongCat-Flash scales
    Row(LatentAttention, "q_BHSn, q_BHSP", "mul", "q = √(d/r_q)·q = [q_n, q_r] of each head"),
    Row(LatentAttention, "kept_BSC", "mul", "norm(c) = √(d/d_c)·norm(c)"),
    # Gemma 3n: normed values, top values of a gate, copies of the stream, each layer's embedding
    Row(Attention, "v", "pow mean add rsqrt mul", "v = v / √(mean(v²) + ε)"),
    Row(GatedFeedForward, "gate_BSM", "erfinv std mean relu", _top_values, "mul sub add div"),
    Row(Stack, "x_BSD", "pow mean clamp sqrt mul div",
        "x_i = x_i · √(mean(x_0²) / mean(x_i²))", "stack"),
    Row(Stack, "copies_ABSD", "pow mean clamp sqrt mul div",
        "x_i = x_i · √(mean(x_0²) / mean(x_i²))", "stack"),
    Row(Stack, "x_BSD", "mean", "x = mean of the copies x_i"),
    Row(LayerInputs, "known", "where", "the token, or row 0 for one beyond the table",
        "ge lt bitwise_and"),
    Row(LayerInputs, "told_BSE", "mul", "told = √d_p · told"),
    Row(LayerInputs, "made_BSE", "mul", "made = made / √d"),
    Row(LayerInputs, "told, made", "", "of each layer"),
    Row(LayerInputs, "return", "add mul", "(norm(made) + told) / √2"),
    Row(LayerTable, "", "embedding", "told = E_layers[token]"),
    Row(Block, "copies_ABSD", "mul", "what the router reads: norm(x) / d"),
    Row(Block, "copies_ABSD", "tanh", "router = tanh(router)"),
    Row(Block, "copies_ABSD", "bmm add", "p_i = x_i + Σ_j c_ij·x_j: every copy from all"),
    Row(Block, "corrected_ABSD", "mul", "what the router reads: norm(y) / d"),
    Row(Block, "corrected_ABSD", "tanh", "router = tanh(router)"),
    Row(Block, "corrected_ABSD", "add sub mul", "x_i = p_i + (1 + g_i)·(y − p)"),
    Row(Laurel, "return", "add", "x + norm(right(left(x)))"),
    Row(Block, "x_BSD", "add div", "x = (x + laurel) / √2"),
    Row(Block, "read_BSD", "mul", "read = w · x, of the copy that was computed"),
    Row(Block, "others_ABSD", "add", "x_i = x_i + the layer's own embedding, but x_0"),
    Row(Block, "return", "cat", HIDDEN),
    Row(LayerInput, "gate_BSP", "gelu", "gate = gelu(gate)"),
    Row(LayerInput, "gate_BSP", "silu", "gate = silu(gate)"),
    Row(LayerInput, "read_BSP", "mul", "read = gate · the layer's embedding"),
    # attention beside them: a gate on what it gives, both side by side
    Row(Attention, "q, gate_BSW", "", "[q, gate] of each head"),
    Row(Attention, "y_BSD", "sigmoid mul", "out = out · sigmoid(gate)"),
    Row(Block, "y", "add", "y = mamba + attn"),
    # a block that layers share, and the adapters of each use
    Row(SharedBlock, "both_BSE", "cat", "[x, x₀]: the hidden state and the embedding"),
    Row(Attention, "q, gate_BSW", "add", "q = q + what its adapter gives"),
    *(Row(Attention, n, "add", f"{n} = {n} + what its adapter gives, split into heads")
      for n in "kv"),
    Row(GatedFeedForward, "both", "cat", HIDDEN),
    Row(GatedFeedForward, "gate_BSM, up_BSM", "add", "[gate, up] = both + what the adapter gives"),
    Row(FeedForward, "up_BSM", "add", "up = up + what its adapter gives"),
    Row(Block, "read_BSD", "add", "read = x + what the shared block gives"),
    Row(CausalConv1d, "", "constant_pad_nd convolution", _conv),
    Row(CausalConv1d, "", "cat convolution", _conv_continued),
    Row(GatedNorm, "", "silu mul pow mean add rsqrt", _gated_norm),
    # Mamba
    Row(Mamba, "x_BSI", "silu", "x = silu(x)"),
    Row(Mamba, "dt_BSI", "softplus", "Δ = softplus(Δ)"),
    Row(Mamba, "decay_BSIN", "exp neg mul", "decay = exp(Δ·A) with A = −exp(A_log)"),
    Row(Mamba, "added_BSIN", "mul", "added = Δ·x·Bᵀ"),
    Row(Mamba, "states_BSIN", "mul add cat",
        "state = decay·state + added, for all positions in rounds"),
    Row(Mamba, "states_BSIN", "mul add stack", "state = decay·state + added"),
    Row(Mamba, "y_BSI", "bmm", "y = state·C"),
    Row(Mamba, "y_BSI", "mul add silu", "y = (y + D·x) · silu(z)"),
    # Mamba-2
    Row(Mamba2, "mixed", "silu", "[x, B, C] = silu([x, B, C])"),
    Row(Mamba2, "x_BSHP", "", "x split into heads"),
    Row(Mamba2, "b_BSHN, c_BSHN", "", "B, C of each head's group"),
    Row(Mamba2, "dt_BSH", "add softplus", "Δ = softplus(Δ + bias)"),
    Row(Mamba2, "dt_BSH", "clamp", _clamped),
    Row(Mamba2, "decay_BSH", "exp neg mul", "log decay = Δ·A with A = −exp(A_log)"),
    Row(Mamba2, "factors", "mul", "x = Δ·x"),
    Row(Mamba2, "x, decay, b, c", "constant_pad_nd", CUT),
    Row(Mamba2, "so_far", "cumsum", "decay so far in the chunk, as a log"),
    Row(Mamba2, "scores", "bmm", "scores = C·Bᵀ in each chunk"),
    Row(Mamba2, "scores", "tril bitwise_not masked_fill cumsum exp mul",
        "scores = scores · decay between the two, 0 ahead"),
    Row(Mamba2, "inside", "bmm", "inside = scores·x"),
    Row(Mamba2, "left", "sub exp", "decay from each position to the chunk's end"),
    Row(Mamba2, "added", "mul bmm", "added = (B · decay)ᵀ·x of each chunk"),
    Row(Mamba2, "added", "cat", "added = [first state, added]"),
    Row(Mamba2, "between", "constant_pad_nd tril bitwise_not masked_fill cumsum exp",
        "decay between each two chunks"),
    Row(Mamba2, "states", "bmm", "state of each chunk = Σ decay · added"),
    Row(Mamba2, "before", "bmm", "before = C·state that the chunk began with"),
    Row(Mamba2, "before", "exp mul", "before = before · decay so far"),
    Row(Mamba2, "return", "add", "y = inside + before"),
    Row(Mamba2, "y_BSHP, state_BHPN", "mul exp add bmm stack",
        "state = decay·state + x·Bᵀ, y = state·C"),
    Row(Mamba2, "y_BSI", "mul add", "y = y + D·x"),
    Row(Mamba2, "y_BSI", "silu mul", "y = y · silu(z)"),
    # the delta rule: one decay a head, or one a channel of the keys
    *(Row(module, gives, ran, text) for module in (GatedDelta, KimiDelta) for gives, ran, text in (
        ("mixed", "cat", "[q, k, v] side by side"),
        ("mixed", "silu", "[q, k, v] = silu([q, k, v])"),
        ("beta_BHS", "sigmoid", "β = sigmoid(b)"),
        ("q, k, v, decay, beta", "constant_pad_nd", CUT),
        ("so_far", "cumsum", "decay so far in the chunk, as a log"),
        ("between", "sub tril bitwise_not masked_fill exp", "decay between the two, 0 ahead"),
        ("corrections", "bmm sub", "written = values − keys·state"),
        ("", "bmm add", "y = q·state + scores·written"),
        ("added", "bmm", "added = kᵀ·written"),
        ("state_BHKV", "mul add", "state = decay·state + added"),
        ("return", "cat", "y of all chunks"),
        ("return", "", "heads joined"),
        ("y_BHSV, state_BHKV", "exp mul sum sub add stack",
         "state = decay·state, state = state + β·k·(v − k·state)ᵀ, y = q·state"),
    )),
    Row(GatedDelta, "q_BHSK, k_BHSK", "pow sum add rsqrt mul", "q = q / |q|, k = k / |k|"),
    Row(GatedDelta, "v_BHSV", "", "v split into heads"),
    Row(GatedDelta, "beta_BHS", "mul", "β = 2·β"),
    Row(GatedDelta, "step", "add softplus", "Δ = softplus(a + bias)"),
    Row(GatedDelta, "decay_BHS", "exp neg mul", "log decay = −exp(A_log)·Δ"),
    Row(GatedDelta, "q_BHSK", "mul", "q = q / √{last}"),
    Row(GatedDelta, "beta_k, beta_v", "mul", "β·k, β·v"),
    Row(GatedDelta, "triangle", "bmm mul", "A = (β·k)·kᵀ · decay between the two"),
    Row(GatedDelta, "scores", "bmm mul", "scores = q·kᵀ · decay between the two"),
    Row(GatedDelta, "from_start", "exp", "decay from the chunk's start"),
    Row(GatedDelta, "values, keys", "mul", "β·k · decay from the chunk's start"),
    Row(GatedDelta, "values, keys", "linalg_solve_triangular",
        "(I + A)·values = β·v, (I + A)·keys = β·k · decay"),
    Row(GatedDelta, "to_end", "sub exp", "decay to the chunk's end"),
    Row(GatedDelta, "y, state", "mul", "q · decay from the start, k · decay to the end"),
    Row(GatedDelta, "gate_BSHV", "", "gate split into heads"),
    Row(GatedDelta, "y_BSHV", "silu mul", "y = y · silu(gate)"),
    Row(KimiDelta, "q_BHSK, k_BHSK, v_BHSV", "", "q, k, v split into heads"),
    Row(KimiDelta, "q_BHSK, k_BHSK", "pow sum add rsqrt mul",
        "q = q / |q| / √{last}, k = k / |k|"),
    Row(KimiDelta, "pairs", "mul", "k of each pair · decay between the two"),
    Row(KimiDelta, "beta_k", "mul", "β·k"),
    Row(KimiDelta, "triangle", "mul sum", "A = Σ β·k · k · decay, channel by channel"),
    Row(KimiDelta, "scores", "mul sum", "scores = Σ q · k · decay, channel by channel"),
    Row(KimiDelta, "solved", "eye mul stack sub sum", "(I + A)⁻¹, row by row"),
    Row(KimiDelta, "values, keys", "mul bmm exp",
        "values = (I + A)⁻¹·(β·v), keys = (I + A)⁻¹·(β·k · decay)"),
    Row(KimiDelta, "to_end", "sub exp", "decay to the chunk's end"),
    Row(KimiDelta, "y, state", "exp mul", "q · decay from the start, k · decay to the end"),
    Row(KimiDelta, "gate", "sigmoid", "gate = sigmoid(gate)"),
    Row(KimiDelta, "y_BSHV", "mul", "y = y · gate"),
    Row(ForgetGate, "step", "add softplus", "Δ = softplus(f + bias)"),
    Row(ForgetGate, "return", "exp neg mul", "log decay = −exp(A_log)·Δ of each channel"),
    # lightning attention
    Row(Lightning, "qkv", "silu", "[q, k, v] = silu([q, k, v])"),
    Row(Lightning, "rate_H", "mul div exp2", _rate_of_heads),
    Row(Lightning, "apart", "sub", "distance of the two positions"),
    Row(Lightning, "between", "neg mul exp lt masked_fill",
        "decay = exp(−rate · distance), 0 ahead"),
    Row(Lightning, "inside", "bmm mul", "inside = (q·kᵀ · decay)·v"),
    Row(Lightning, "", "neg mul exp bmm add", "y = inside + (q · decay so far)·state"),
    Row(Lightning, "added", "rsub neg mul exp bmm", "added = (k · decay to the end)ᵀ·v"),
    Row(Lightning, "state", "neg exp mul add", "state = decay·state + added"),
    Row(Lightning, "added", "bmm", "added = kᵀ·v"),
    Row(Lightning, "state_BHKK", "neg exp mul add", "state = decay·state + added"),
    Row(Lightning, "", "bmm", "y = q·state"),
    Row(Lightning, "return", "cat", "y of all chunks"),
    Row(Lightning, "y_BSC", "", "heads joined"),
    Row(Lightning, "return", "sigmoid mul", "y = sigmoid(gate) · y"),
    # the mLSTM: exponents are taken less the highest one, m
    Row(MLstm, "q_BHSK, k_BHSK, v_BHSV", "", "q, k, v split into heads"),
    Row(MLstm, "q_BHSK", "mul", "q = q / √{last}"),
    *(Row(MLstm, f"{letter}_BHS", "div tanh mul", _capped_gate) for letter in "if"),
    Row(MLstm, "kept_BHS", "neg softplus", "f = log σ(f)"),
    Row(MLstm, "chunks", "", "whole chunks of positions"),
    Row(MLstm, "so_far", "cumsum", "f so far in the chunk"),
    Row(MLstm, "to_end", "sub add", "a = f to the chunk's end + i"),
    Row(MLstm, "largest, highest", "max", "largest a of the chunk"),
    Row(MLstm, "m_BH", "add maximum", "m = max(f of the chunk + m, largest a)"),
    Row(MLstm, "before, behind", "stack", "m before each chunk, and behind it"),
    Row(MLstm, "written", "sub exp mul", "written = exp(a − m)·k"),
    Row(MLstm, "added_cell, added", "bmm sum", "added = writtenᵀ·v, and Σ written"),
    Row(MLstm, "keep", "add sub exp", "kept = exp(f of the chunk + m before − m behind)"),
    Row(MLstm, "cell_BHKV", "mul add", "C = kept·C + added"),
    Row(MLstm, "normalizer_BHK", "mul add", "n = kept·n + added"),
    Row(MLstm, "cell, normalizer", "stack", "C and n before each chunk"),
    Row(MLstm, "between", "sub tril bitwise_not masked_fill add",
        "D = f between the two + i, −∞ ahead"),
    Row(MLstm, "from_start", "add", "f from the chunk's start + m"),
    Row(MLstm, "m", "max maximum", "m = max(f from the start + m, largest D)"),
    Row(MLstm, "scores", "bmm sub exp mul", "scores = q·kᵀ · exp(D − m)"),
    Row(MLstm, "q", "sub exp mul", "q = q · exp(f from the start + m before − m)"),
    Row(MLstm, "y", "bmm add", "y = q·C + scores·v"),
    Row(MLstm, "divisor", "bmm sum add", "divisor = q·n + Σ scores"),
    Row(MLstm, "divisor", "abs neg exp maximum add", "divisor = max(|divisor|, exp(−m)) + ε"),
    Row(MLstm, "return", "div", "h = y / divisor"),
    Row(MLstm, "decayed", "add", "f + m"),
    Row(MLstm, "m", "maximum", "m = max(f + m, i)"),
    Row(MLstm, "keep, write", "sub exp", "f = exp(f + m before − m), i = exp(i − m)"),
    Row(MLstm, "cell", "mul bmm add", "C = f·C + i·k·vᵀ"),
    Row(MLstm, "normalizer", "mul add", "n = f·n + i·k"),
    Row(MLstm, "y", "bmm", "y = q·C"),
    Row(MLstm, "divisor", "bmm", "divisor = q·n"),
    Row(MLstm, "", "div", "h = y / divisor"),
    Row(MLstm, "return", "stack", "h of all steps"),
    Row(MLstm, "y_BSC", "cat", "h of all positions"),
    Row(MLstm, "return", "sigmoid mul", "h = sigmoid(o) · h"),
    Row(MultiHeadNorm, "", "mean sub pow add rsqrt mul",
        "y = (x − mean(x)) / √(var(x) + ε) of each head · w"),
    # the real-gated linear recurrent unit
    Row(RecurrentBlock, "x_BSW", "convolution",
        "each channel's sum over its position and those before it"),
    Row(RecurrentBlock, "x_BSW", "cat mul sum add",
        "each channel's sum over its position and those kept"),
    Row(RecurrentBlock, "", "cat", HIDDEN),
    Row(RecurrentBlock, "y_BSW", "gelu", "y = gelu(y)"),
    Row(RecurrentBlock, "return", "mul", "h · y"),
    Row(RgLru, "input_gate", "bmm add sigmoid", "i = sigmoid(x·W_x + b_x), block by block"),
    Row(RgLru, "recurrence_gate", "bmm add sigmoid", "r = sigmoid(x·W_a + b_a), block by block"),
    Row(RgLru, "log_decay", "mul softplus", "log decay = −8·r·softplus(Λ)"),
    Row(RgLru, "factor", "mul exp rsub sqrt", "factor = √(1 − decay²)"),
    Row(RgLru, "factor", "cat", "factor = 1 at the first position"),
    Row(RgLru, "gated", "mul", "x = x · i · factor"),
    Row(RgLru, "return", "exp mul add cat constant_pad_nd",
        "h = decay·h + x, for all positions in rounds"),
    Row(RgLru, "return", "exp mul add cat", "h = decay·h + x"),
    # the gated short convolution
    Row(ShortConvolution, "y_BDS", "mul",
        lambda s: "y = C · y" if "conv" in s.before else "x = B · x"),
    # the indexer
    Row(Indexer, "scores_BST", "pow mul cos sin sub add cat", "q_I = RoPE(q_I, position)", TURNS),
    Row(Indexer, "scores_BST", "mul", lambda s: f"w = w / √{s.module.n_heads}"),
    Row(Indexer, "scores_BST", "masked_fill bitwise_not",
        "scores = −∞ where the query must not see the key"),
    Row(Indexer, "best", "topk", lambda s: f"the {s.module.top_k} best positions of each query"),
    Row(Indexer, "dropped", "scatter", "bias = 0 at the best positions, −∞ elsewhere"),
    Row(IndexScores, "products", "bmm", "products = q_I·k_Iᵀ"),
    Row(IndexScores, "positive_BSHT", "mul relu", "products = relu(products / √width of a key)"),
    Row(IndexScores, "return", "bmm", "scores = Σ w · products over the heads"),
    # the indexer of blocks
    Row(Attention, "index_BTI", "pow mul cos sin sub add cat", "k_I = RoPE(k_I, position)", TURNS),
    Row(Attention, "k, v, index_BTI", "cat", "k, v, k_I = [cached, new] of each"),
    Row(BlockIndexer, "scores_BHST", "", "q_I split into heads"),
    Row(BlockIndexer, "scores_BHST", "pow mul cos sin sub add cat", "q_I = RoPE(q_I, position)",
        TURNS),
    Row(BlockIndexer, "scores_BHST", "masked_fill bitwise_not",
        "scores = −∞ where the query must not see the key", "le"),
    Row(BlockIndexer, "nothing", "new_full", "nothing = −∞ for each block"),
    Row(BlockIndexer, "best_BHSb", "scatter_reduce", "best = the best score in each block"),
    Row(BlockIndexer, "before_Sb", "sub", "blocks from the query's own back to each",
        "floor_divide"),
    Row(BlockIndexer, "local_Sb", "ge lt bitwise_and", "local = the query's own block"
        " and those just before it"),
    Row(BlockIndexer, "best_BHSb", "masked_fill", "best = ∞ for its local blocks"),
    Row(BlockIndexer, "chosen", "topk",
        lambda s: f"the {s.module.top_blocks} best blocks of each query"),
    Row(BlockIndexer, "dropped_BHSb", "scatter", "bias = 0 for the best blocks, −∞ elsewhere"),
    Row(BlockIndexer, "return", "gather",
        "bias of each position: its block's, for the heads that share it", "index_select"),
    Row(BlockScores, "", "bmm", "scores = q_I·k_Iᵀ"),
)  # fmt: skip


ROTATES = "pow mul cos sin sub add"  # beside cat or stack
# What an equation of a residual calls each sublayer.
SUBLAYERS = {
    "self_attn": "attn",
    "cross_attn": "cross",
    "mlp": "ffn",
    "mamba": "mamba",
    "linear_attn": "attn",
    "mlstm_layer": "mlstm",
    "conv": "conv",
    "temporal_block": "recurrence",
}


def _weight(seen: Seen) -> str:
    module = seen.module
    if module.weight is None:
        return ""
    return " · (1 + w)" if getattr(module, "unit_offset", False) else " · w"


def _rms(seen: Seen) -> str:
    return f"y = x / √(mean(x²) + ε){_weight(seen)}"


def _layer_norm(seen: Seen) -> str:
    module = seen.module
    bias = "" if module.bias is None else " + b"
    return f"y = (x − mean(x)) / √(var(x) + ε){_weight(seen)}{bias}"


def _scores(seen: Seen) -> str:
    """Write the equation of the scores; the scale is a root only if it is of the heads' width."""
    module = seen.module
    width = seen.inputs[0][-1]
    if module.scale == width**-0.5:
        return "scores = q·kᵀ / √{last}"
    return "scores = q·kᵀ" if module.scale == 1 else f"scores = q·kᵀ · {module.scale:.4g}"


def _capped(name: str, value: float) -> str:
    return f"{name} = {value:g}·tanh({name} / {value:g})"


def _activated(seen: Seen) -> str:
    module = seen.module
    word: str = module.activation
    if word == "silu" and module.swish_beta != 1.0:
        return f"x·sigmoid({module.swish_beta:g}·x)"
    return {"gelu_tanh": "gelu", "relu2": "relu²", "sigmoid": "σ"}.get(word, word)


def _ffn(seen: Seen) -> str:
    word = _activated(seen)
    return f"hidden = {word.replace('x', 'up') if 'x·' in word else f'{word}(up)'}"


def _gated(seen: Seen) -> str:
    word = _activated(seen)
    if word == "clamped_swiglu":
        return "hidden = (up + 1)·gate·sigmoid(1.702·gate), both within ±7"
    if word == "identity":
        return "hidden = gate · up"
    acted = word.replace("x", "gate") if "x·" in word else f"{word}(gate)"
    return f"hidden = {acted} · up"


def _residual(seen: Seen) -> str:
    """Write a residual's equation: it adds the last sublayer, or its norm, or else y."""
    module = seen.module
    last = next(
        (
            SUBLAYERS.get(name, "y")
            for name in reversed(seen.before)
            if not name or name in SUBLAYERS
        ),
        "y",
    )
    normed = seen.before[-1:] and seen.before[-1] and seen.before[-1] not in SUBLAYERS
    added = f"norm({last})" if normed else last
    x = "norm(x)" if module.adds_to_normed else "x"
    return f"x = {factor(module.alpha)}{x} + {factor(module.residual_scale)}{added}"


def _both_branches(seen: Seen) -> str:
    scale = factor(seen.module.residual_scale)
    return f"x = {factor(seen.module.alpha)}x + " + (
        f"{scale}(attn + ffn)" if scale else "attn + ffn"
    )


def _with_positions(seen: Seen) -> str:
    """Write the equation of what is added to x: experts of the layer before, or the table."""
    if any(name.startswith("layers.") for name in seen.before):
        return "x = x + moe of the layer before"
    if len(seen.inputs) > 1:
        return "x = x + p"
    offset: int = seen.module.spec.positions.offset
    return f"row = position + {offset}" if offset else HIDDEN


def _embedding_scale(seen: Seen) -> str:
    scale: float = seen.module.spec.embedding.scale
    root = scale == seen.inputs[0][-1] ** 0.5
    return "x = √{last} · x" if root else f"x = {scale:.4g}·x"


def _logit_scale(seen: Seen) -> str:
    spec = seen.module.spec
    if spec.head.scale == spec.d_model**-0.5:
        return "logits = logits / √d"
    return f"logits = {spec.head.scale:.4g}·logits"


def _routed(seen: Seen) -> str:
    module = seen.module
    return HIDDEN if module.routed_scale == 1.0 else f"weights = {module.routed_scale:g}·weights"


def _rows_of(name: str) -> str:
    return f"{name} of each row: a token, once for each of its experts"


def _rope(module: type, gives: str, name: str) -> list[Row]:
    text = f"{name} = RoPE({name}, position)"
    return [Row(module, gives, f"{ROTATES} {join}", text, TURNS) for join in ("cat", "stack cat")]


ROWS: tuple[Row, ...] = (
    Row(RMSNorm, "", "pow mean add rsqrt", _rms, "mul"),
    Row(LayerNorm, "", "mean sub pow add rsqrt mul", _layer_norm),
    Row(TokenEmbedding, "", "embedding", "x = E[token]"),
    Row(TypeTable, "", "embedding", "t = E_type[type]"),
    Row(PositionTable, "", "embedding", "p = P[position]"),
    Row(Table, "", "embedding", "one value for each bucket and head"),
    # the two products of attention
    Row(ScaledDotProduct, "q", "", HIDDEN),
    Row(ScaledDotProduct, "scores", "bmm mul", _scores),
    Row(ScaledDotProduct, "scores", "div tanh mul", lambda s: _capped("scores", s.module.softcap)),
    Row(ScaledDotProduct, "scores", "add", "scores = scores + bias"),
    Row(ScaledDotProduct, "scores", "masked_fill bitwise_not",
        "scores = −∞ where the query must not see the key",
        "le ge lt sub bitwise_and bitwise_or floor_divide eq abs"),
    Row(ScaledDotProduct, "scores", "", HIDDEN),
    Row(ScaledDotProduct, "weights", "_softmax", "weights = softmax(scores)"),
    Row(ScaledDotProduct, "weights", "cat _softmax",
        "weights = softmax([scores, sink]), sink left out"),
    Row(ScaledDotProduct, "weights", "", HIDDEN),
    Row(ScaledDotProduct, "return", "bmm", "out = weights·v"),
    *(Row(Attention, n, "", f"{n} split into heads") for n in "qkv"),
    *_rope(Attention, "q", "q"), *_rope(Attention, "k", "k"),
    *(Row(Attention, n, "pow mean add rsqrt mul", f"{n} = {n} / √(mean({n}²) + ε)") for n in "qk"),
    Row(Attention, "k, v", "cat", "k, v = [cached k, k], [cached v, v]"),
    Row(Attention, "q", "add div floor log1p mul", "q = q·(1 + a·ln(1 + ⌊position / step⌋))"),
    Row(Attention, "q", "add", "q = q + u"),
    Row(Attention, "bias", "mul", "bias = bias · scale"),
    Row(Attention, "y_BSW", "", "heads joined"),
    # latent attention
    Row(LatentAttention, "q_BHSn, q_BHSP", "", "q = [q_n, q_r] of each head"),
    *_rope(LatentAttention, "q_BHSP", "q_r"),
    Row(LatentAttention, "latent_BSC, k_BSP", "", "[c, k_r]: the latent and the key to rotate"),
    *_rope(LatentAttention, "rotated_BSP", "k_r"),
    Row(LatentAttention, "kept_BTc", "cat", "kept = [norm(c), k_r]: all that a cache keeps"),
    Row(LatentAttention, "", f"{ROTATES} cat", "k_I = RoPE(k_I, position)", TURNS),
    Row(LatentAttention, "kept", "cat", "kept = [cached, kept]"),
    Row(LatentAttention, "y_BHSU", "cat", "q = [q_n, q_r], k = [k_n, k_r of all heads]"),
    Row(LatentAttention, "y_BHSU", "bmm cat", "q = [q_n·W_UK, q_r]: into the latent"),
    Row(LatentAttention, "y_BHSU", "bmm", "out = out·W_UV: out of the latent"),
    Row(LatentAttention, "y_BHSU", "", HIDDEN),
    Row(LatentAttention, "return", "", "heads joined"),
    # positions
    Row(RelativeBias, "bias_STH",
        "sub lt where", "bucket of the distance",
        "abs neg clamp clamp_min div log mul add gt le zeros_like minimum clamp_max floor_divide"),
    Row(RelativeBias, "return", "", HIDDEN),
    Row(RelativeProjection, "table", "pow div sin cos", "sines and cosines of each distance",
        "stack cat mul constant_pad_nd reciprocal"),
    Row(RelativeProjection, "r_HTK", "", "r split into heads"),
    Row(RelativeProjection, "distance_ST", "sub clamp", "distance = position − key's position"),
    Row(RelativeProjection, "q", "add", "q = q + v"),
    Row(RelativeScores, "", "bmm gather", "q·rᵀ, the column of each distance"),
    # feed-forward and experts
    *(Row(FeedForward, "hidden_BSM", ran, _ffn)
      for ran in ("relu", "gelu", "silu", "relu pow", "sigmoid", "mul sigmoid")),
    *(Row(GatedFeedForward, "hidden_BSM", ran, _gated)
      for ran in ("mul", "relu mul", "gelu mul", "silu mul", "relu pow mul", "sigmoid mul",
                  "clamp mul sigmoid add")),
    Row(Router, "logits_NE", "", HIDDEN),
    Row(Router, "probs_NE", "_softmax", "scores = softmax over all experts"),
    Row(Router, "probs_NE", "sigmoid", "scores = sigmoid of each expert"),
    Row(Router, "chosen_Nk, weights_Nk",
        "max sub abs maximum div gt masked_fill _softmax gather scatter cat",
        "the k best, one after another (SparseMixer)"),
    Row(Router, "for_choice", "add", "for the choice: scores + selection bias"),
    Row(Router, "chosen_Nk", "topk", "top-k: the k best experts of each token"),
    Row(Router, "chosen_Nk", "topk sum scatter masked_fill bitwise_not",
        "top-k: the k best experts of the G_k best groups"),
    Row(Router, "weights_Nk", "gather _softmax", "weights = softmax of the k chosen logits"),
    Row(Router, "weights_Nk", "gather", "weights = scores of the k chosen"),
    Row(Router, "weights_Nk", "sum div", "weights = weights / their sum"),
    Row(Router, "weights_Nk", "mul", _routed),
    Row(Router, "return", "mul", _routed),
    Row(Experts, "expert_R, order", "sort", "rows sorted by expert, k of them a token"),
    Row(Experts, "token_R", "floor_divide", HIDDEN),
    Row(Experts, "weight_R1", "index", _rows_of("weight")),
    Row(Experts, "x_RD", "index", _rows_of("x")),
    Row(Experts, "x_RD", "index mul", "x of each row, times its weight"),
    *(Row(Experts, "hidden", ran, lambda s: "[gate, up] = x·W of the row's expert"
          if s.module.gated else "up = x·W of the row's expert", "add") for ran in ("index bmm",)),
    Row(Experts, "gate_RM, up_RM", "", HIDDEN),
    *(Row(Experts, "hidden", ran, lambda s: _gated(s) if s.module.gated else _ffn(s))
      for ran in ("mul", "relu mul", "gelu mul", "silu mul", "relu pow mul", "sigmoid mul", "relu",
                  "gelu", "silu", "relu pow", "sigmoid",
                  "clamp mul sigmoid add")),
    Row(Experts, "y_RD", "index bmm", "y = hidden·W_down of the row's expert", "add"),
    Row(Experts, "y_RD", "mul", "y = weight · y"),
    Row(Experts, "return", "index_add", "y of each token: the sum over its k experts"),
    Row(MixtureOfExperts, "x_ND", "", "the tokens of all sequences in one list"),
    Row(MixtureOfExperts, "shared_ND", "sigmoid mul", "shared = sigmoid(gate) · shared"),
    Row(MixtureOfExperts, "y_ND", "add", "y = routed + shared"),
    Row(MixtureOfExperts, "return", "", "sequences again"),
    # blocks, stacks and ends
    *(Row(Block, "x_BSD", ran, _residual) for ran in ("add", "mul add")),
    Row(Block, "return", "add mul", _both_branches),
    Row(Stack, "x_BSD", "add", _with_positions),
    Row(Stack, "x_BSD", "pow div sin cos add", "x = x + sines and cosines of the position",
        "stack cat mul constant_pad_nd reciprocal"),
    Row(Stack, "query_BSD", "", "the query of the last layer: a position"),
    Row(Stack, "biases[windowed]", "sub abs neg mul", "bias = −slope of the head · distance"),
    Row(Model, "hidden_BSD", "mul", _embedding_scale),
    Row(Model, "hidden_BSD", "add", "x = x + t"),
    Row(Model, "return", "mul", _logit_scale),
    Row(Model, "return", "div tanh mul",
        lambda s: _capped("logits", s.module.spec.head.softcap)),
    *(Row(HeadTransform, "y", ran, lambda s: f"h = {_activated(s)}(y)")
      for ran in ("gelu", "relu", "silu")),
    Row(Pooler, "return", "", "the first token of each sequence"),
    Row(Pooler, "return", "tanh", "pooled = tanh(y)"),
    *MIXERS,
)  # fmt: skip

_BY_PLACE: dict[tuple[type, str], list[Row]] = {}
for _row in ROWS:
    _BY_PLACE.setdefault((_row.module, _row.gives), []).append(_row)

LINEAR = (Linear, OutputHead, EmbeddingProjection)


def row_of(seen: Seen) -> Row | None:
    """Find the row whose operators ran, and no others."""
    ran, kind = set(seen.operators), SAME_ROWS.get(type(seen.module), type(seen.module))
    for row in _BY_PLACE.get((kind, seen.gives), ()):
        needed = set(row.ran.split())
        if needed <= ran <= needed | set(row.beside.split()):
            return row
    return None


def explain(seen: Seen) -> str | None:
    """Write the equation of what ran in one of our modules; None where no row fits."""
    if type(seen.module) in LINEAR and not seen.gives:
        if isinstance(seen.holder, Router):
            text = linear(seen)
            return text and text.replace("y = x·W", "logits = x·W_r")
        return linear(seen)
    row = row_of(seen)
    if row is None:
        return None
    return row.text if isinstance(row.text, str) else row.text(seen)
