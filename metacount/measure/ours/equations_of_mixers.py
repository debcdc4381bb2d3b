"""What each statement of our mixers that keep a state computes; see `equations` for the rows.

The recurrence of a scan is told as one step where it runs as one; where it runs in chunks, each of
its products is a step. The state is the one that a chunk or a step begins with.
"""

from __future__ import annotations

from metacount.measure.flow.step import HIDDEN, Row, Seen
from metacount.modules.altup import Laurel, LayerInput, LayerInputs, LayerTable
from metacount.modules.attention import Attention
from metacount.modules.block import Block
from metacount.modules.borrowed import BorrowingAttention
from metacount.modules.convolution import CausalConv1d
from metacount.modules.ffn import FeedForward, GatedFeedForward
from metacount.modules.gated_delta import GatedDelta
from metacount.modules.indexer import BlockIndexer, BlockScores, Indexer, IndexScores
from metacount.modules.kimi_delta import ForgetGate, KimiDelta
from metacount.modules.lightning import Lightning
from metacount.modules.mamba import Mamba
from metacount.modules.mamba2 import GatedNorm, Mamba2
from metacount.modules.mla import LatentAttention
from metacount.modules.mlstm import MLstm, MultiHeadNorm
from metacount.modules.model import Stack
from metacount.modules.rg_lru import RecurrentBlock, RgLru
from metacount.modules.shared_block import SharedBlock
from metacount.modules.short_conv import ShortConvolution

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
