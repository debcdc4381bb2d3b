"""Mixers of gates and filters: LFM2's short convolution, Griffin's RG-LRU."""

from __future__ import annotations

from metacount.formulas.dim import Dim, exact_div, smaller
from metacount.formulas.mixers.convolution import (
    CONVOLVED,
    causal_convolution,
)
from metacount.formulas.mixers.state_space import rounds
from metacount.formulas.tape import TOKENS, State, Tape, Tensor, several
from metacount.spec.mixers import RgLru, ShortConv


def short_conv(t: Tape, part: ShortConv, x: Tensor) -> Tensor:
    """A gated short convolution: B, C, x = split(W_in·h);  y = C · conv(B · x);  out = W_out·y.

    in [3·d, d], conv [d, 1, k_c], out [d, d], perhaps with biases

    Source: LFM2 technical report, arXiv:2511.23404, sec. 2; its L_cache is our k_c.
    """
    t.role, run, d = "recurrent", t.run, x.columns
    both = t.linear(x, "conv.in_proj", 3 * d, bias=part.conv_bias)
    b, c, inner = (t.part(both, d) for _ in range(3))
    made = causal_convolution(
        t, t.mul(b, inner), part.conv_kernel, "conv.conv", bias=part.conv_bias
    )
    t.states.append(State(name="conv", shape=(d, part.conv_kernel)))
    y = t.mul(made, c, out=t.make(x.rows, d, grad=False, width=run.value))
    return t.linear(t.copy(y), "conv.out_proj", d, bias=part.conv_bias)


def rg_lru(t: Tape, part: RgLru, x: Tensor) -> Tensor:
    """Griffin's recurrent block: out(RG-LRU(conv(x)) · act(y)), x and y two projections.

    x, y [w, d], out [d, w], conv [w, 1, k_c], each with a bias; two gates [h_l, w/h_l, w/h_l] with
    biases, w decays. The recurrence h_t = a_t·h_{t-1} + sqrt(1 - a_t²)·(i_t·x_t) is element by
    element, in ⌈log2 S⌉ rounds.

    Source: Griffin, arXiv:2402.19427, eq. 1-4, fig. 2, sec. 2.3, 2.4 and appendix A; their D_RNN is
    our w.
    """
    t.role, run, n = "recurrent", t.run, x.rows
    w, blocks, name = part.lru_width, part.n_lru_blocks, "temporal_block"
    block = exact_div(w, blocks)
    branch = t.linear(x, f"{name}.linear_y", w, bias=True)
    mixed = t.linear(x, f"{name}.linear_x", w, bias=True)
    made = causal_convolution(
        t, mixed, part.conv_kernel, f"{name}.conv_1d", bias=True, lengthened=False
    )
    t.states += [
        State(name="conv", shape=(w, part.conv_kernel - 1)),
        State(name="recurrent", shape=(w,), bytes_per_value=4),
    ]
    # of one sequence x lies as the matrix wants it
    copied = several(run.batch_size, run.n_queries, w + part.conv_kernel - 1)
    trained = t.weight(f"{name}.rg_lru.recurrent_param", w)

    def gate(kind: str) -> Tensor:
        weight = f"{name}.rg_lru.{kind}_gate_weight"
        by_matrix = t.weight(weight, blocks, block, block, rows=TOKENS)
        by_bias = t.weight(f"{name}.rg_lru.{kind}_gate_bias", blocks, block)
        read = t.copy(made, copied)
        y = t.make(n, w, grad=made.grad or by_matrix or by_bias, width=run.value)
        t.record(
            weight,
            y,
            [(read, by_matrix)],
            rows=n,
            width=w * block,
            factors=(made.grad, by_matrix),
            results=[y.store],
        )
        return t.from_result(y, "sigmoid")

    i, r = gate("input"), gate("recurrent")
    rate = t.make(1, w, grad=trained, width=run.value)  # softplus(Λ), whose argument is the weight
    scaled = t.record("scale", t.like(r))  # c·r
    power = t.mul(rate, scaled, out=t.like(r))
    squared = t.from_result(power, "exp")
    root = t.from_result(t.record("subtract", t.like(squared)), "sqrt")
    factor = t.record("cat", t.like(root))
    gated = t.mul(made, i, out=t.make(n, w, grad=False, width=run.value))
    entered = t.widen(t.mul(gated, factor))
    decay = t.widen(t.from_result(power, "exp"))
    h = _doubled(t, decay, entered)
    y = t.activation(branch, part.activation)
    return t.linear(t.mul(t.narrow(h), y), f"{name}.linear_out", x.columns, bias=True)


def _doubled(t: Tape, decay: Tensor, x: Tensor) -> Tensor:
    """Run the rounds over spans twice as long each: decays, inputs and decays shifted are saved."""
    n_rounds = rounds(t.run.n_queries)
    after_first = n_rounds - smaller(n_rounds, 1)
    w, grad = x.columns, x.grad or decay.grad
    first = t.constant(t.run.batch_size, w)
    x = t.record("mul", t.like(x, grad=grad), [(first, decay.grad)])
    decays = t.constant(after_first * x.rows, w)
    inputs = t.constant(n_rounds * x.rows, w)
    shifted = t.constant(after_first * x.rows, w)
    saves = [(decays, grad), (inputs, decay.grad), (shifted, decay.grad)]
    # of the first round, before it is shifted
    if isinstance(n_rounds, int) or t.run.value == decay.store.width:
        saves += [(decay.store, grad)] if not isinstance(n_rounds, int) or n_rounds else []
    else:  # lengths in an array: of a single position there is no round
        saves.append((t.constant(smaller(n_rounds, 1) * decay.rows, w), grad))
    return t.record("rounds", t.like(x, grad=grad), saves)


def rg_lru_counts(
    part: RgLru, batch_size: Dim, seq_len: Dim, *, decode: bool = False
) -> dict[str, Dim]:
    """Count the positions that one forward's convolution computes, run by transformers' own code.

    B·(S + k_c - 1), padded at both ends; only S of a sequence's are used. Where a cache is
    continued there are none: the one new token's filter is a sum of elementwise products.

    Source: transformers, `models/recurrent_gemma/modeling_recurrent_gemma.py`.
    """
    return {CONVOLVED: 0 if decode else batch_size * (seq_len + part.conv_kernel - 1)}
