"""Mixers that keep a state: each the loop of its paper, whole and in pieces with one cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.module_loops import (
    SCALAR,
    Row,
    Rows,
    add,
    assert_near,
    convolved,
    dot,
    layer_norm,
    linear,
    matrix,
    parts,
    randomised,
    rms_norm,
    sigmoid,
    silu,
    times,
)
from helpers.recurrent_cache import in_pieces

from metacount.formulas.mixers import mixer_counts, run_mixer
from metacount.formulas.tape import TOKENS, Run, Tape
from metacount.modules import gated_delta, kimi_delta, mamba2
from metacount.modules.recurrent import make_recurrent
from metacount.spec.field import altered
from metacount.spec.mixers import (
    GatedDelta,
    KimiDelta,
    Lightning,
    Mamba,
    Mamba2,
    MLstm,
    RgLru,
    ShortConv,
)
from metacount.spec.stack import Norms

D, EPS, N_LAYERS = 11, 0.2, 5
RMS = Norms(kind="rmsnorm", eps=EPS)

# 4 value heads of 7 on 2 key heads of 5; or 3 heads of 5; chunks of 4
DELTA = GatedDelta(
    conv_kernel=3, n_k_heads=2, n_v_heads=4, k_head_dim=5, v_head_dim=7, chunk_size=4
)
KIMI = KimiDelta(conv_kernel=3, n_heads=3, head_dim=5, chunk_size=4)
LIGHTNING = Lightning(n_heads=3, head_dim=5, chunk_size=4)
# d_i=6, d_s=5, r_t=3
MAMBA = Mamba(conv_kernel=4, state_dim=5, d_ssm=6, dt_rank=3)
# 6 heads of 5 = 30 channels, 2 groups with a state of 7, chunks of 4
MAMBA2 = Mamba2(conv_kernel=3, state_dim=7, n_heads=6, head_dim=5, n_groups=2, chunk_size=4)
MLSTM = MLstm(n_heads=3, k_head_dim=5, v_head_dim=7, chunk_size=4)
SHORT = ShortConv(conv_kernel=3, conv_bias=True)
GRIFFIN = RgLru(conv_kernel=4, lru_width=10, n_lru_blocks=2, activation="gelu_tanh")
BIASED = {"in_bias": True, "out_bias": True}


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def unit(row: Row) -> Row:
    return times(row, 1 / math.sqrt(dot(row, row) + 1e-6))


def delta(state: Rows, q: Row, k: Row, v: Row, decay: Row, beta: float) -> Row:
    """One token: the state decays, is corrected and read; `decay` has a factor for each key."""
    for i, factor in enumerate(decay):
        state[i] = times(state[i], factor)
    read = [dot(k, [row[j] for row in state]) for j in range(len(v))]
    wrong = [beta * (a - b) for a, b in zip(v, read, strict=True)]
    for i, key in enumerate(k):
        state[i] = add(state[i], times(wrong, key))
    return [dot(q, [row[j] for row in state]) for j in range(len(v))]


def empty(keys: int, values: int) -> Rows:
    return [[0.0] * values for _ in range(keys)]


def gated_delta_by_loop(module: Any, rows: Rows, part: GatedDelta) -> Rows:
    three = (module.q_proj, module.k_proj, module.v_proj)
    mixed = [[x for layer in three for x in linear(layer, row)] for row in rows]
    n_k, eps = part.n_k_heads, part.norm_eps or EPS
    states, out = [empty(5, 7) for _ in range(4)], []
    for s, row in enumerate(rows):
        now = [silu(x) for x in convolved(module.conv1d, mixed, s)]
        q, k = parts(now[: 5 * n_k], 5), parts(now[5 * n_k : 10 * n_k], 5)
        v, z = parts(now[10 * n_k :], 7), parts(linear(module.g_proj, row), 7)
        a, b = linear(module.a_proj, row), linear(module.b_proj, row)
        y: Row = []
        for h, state in enumerate(states):
            group = h * n_k // 4
            step = softplus(a[h] + module.dt_bias.tolist()[h])
            decay = math.exp(-math.exp(module.A_log.tolist()[h]) * step)
            beta = sigmoid(b[h]) * (2 if part.negative else 1)
            query = times(unit(q[group]), 5**-0.5)
            of_head = delta(state, query, unit(k[group]), v[h], [decay] * 5, beta)
            normed = rms_norm(of_head, eps, module.o_norm.weight.tolist())
            y += [x * silu(gate) for x, gate in zip(normed, z[h], strict=True)]
        out.append(linear(module.o_proj, y))
    return out


def kimi_delta_by_loop(module: Any, rows: Rows, part: KimiDelta) -> Rows:
    three = (module.q_proj, module.k_proj, module.v_proj)
    mixed = [[x for layer in three for x in linear(layer, row)] for row in rows]
    gate, states, out = module.forget_gate, [empty(5, 5) for _ in range(3)], []
    rates = [math.exp(x) for x in gate.A_log.flatten().tolist()]
    for s, row in enumerate(rows):
        now = parts([silu(x) for x in convolved(module.conv1d, mixed, s)], 5)
        steps = parts(
            add(linear(gate.f_b_proj, linear(gate.f_a_proj, row)), gate.dt_bias.tolist()), 5
        )
        z = parts(linear(module.g_b_proj, linear(module.g_a_proj, row)), 5)
        b, y = linear(module.b_proj, row), []
        for h, state in enumerate(states):
            decay = [math.exp(-rates[h] * softplus(x)) for x in steps[h]]
            query = times(unit(now[h]), 5**-0.5)
            of_head = delta(state, query, unit(now[3 + h]), now[6 + h], decay, sigmoid(b[h]))
            normed = rms_norm(of_head, EPS, module.o_norm.weight.tolist())
            y += [x * sigmoid(g) for x, g in zip(normed, z[h], strict=True)]
        out.append(linear(module.o_proj, y))
    return out


def lightning_by_loop(module: Any, rows: Rows, part: Lightning, layer: int) -> Rows:
    states, out = [empty(5, 5) for _ in range(3)], []
    for row in rows:
        heads = parts([silu(x) for x in linear(module.qkv_proj, row)], 15)
        y: Row = []
        for h, state in enumerate(states):
            q, k, v = parts(heads[h], 5)
            rate = 2 ** (-8 * (h + 1) / 3) * (1 - layer / (4 + 1e-5) + 1e-5)
            for i, key in enumerate(k):
                state[i] = add(times(state[i], math.exp(-rate)), times(v, key))
            y += [dot(q, [of[j] for of in state]) for j in range(5)]
        normed = rms_norm(y, part.norm_eps or EPS, module.o_norm.weight.tolist())
        gates = [sigmoid(x) for x in linear(module.output_gate, row)]
        out.append(linear(module.o_proj, [x * g for x, g in zip(normed, gates, strict=True)]))
    return out


def mamba_by_loop(module: Any, rows: Rows, part: Mamba) -> Rows:
    """Algorithm 2, one token, channel and value of the state after the other."""
    projected = [linear(module.in_proj, row) for row in rows]
    xs, zs = [row[:6] for row in projected], [row[6:] for row in projected]
    a = [[-math.exp(x) for x in row] for row in module.A_log.tolist()]
    skip = module.D.tolist()
    state = [[0.0] * 5 for _ in range(6)]
    out = []
    for s in range(len(rows)):
        x = [silu(v) for v in convolved(module.conv1d, xs, s)]
        read = linear(module.x_proj, x)
        dt, b, c = read[:3], read[3:8], read[8:]
        if part.norms != "none":
            eps = part.norm_eps or EPS
            layers = (module.dt_layernorm, module.b_layernorm, module.c_layernorm)
            weights = [None if n.weight is None else n.weight.tolist() for n in layers]
            dt, b, c = (rms_norm(v, eps, w) for v, w in zip((dt, b, c), weights, strict=True))
        step = [softplus(v) for v in linear(module.dt_proj, dt)]
        y = []
        for i in range(6):
            state[i] = [
                math.exp(step[i] * a[i][n]) * state[i][n] + step[i] * x[i] * b[n] for n in range(5)
            ]
            y.append((dot(state[i], c) + skip[i] * x[i]) * silu(zs[s][i]))
        out.append(linear(module.out_proj, y))
    return out


def mamba2_by_loop(module: Any, rows: Rows, part: Mamba2) -> Rows:
    """One token and head after the other."""
    heads, width, n = part.n_heads, part.head_dim, part.state_dim
    inner, shared = heads * width, part.n_groups * n
    projected = [linear(module.in_proj, row) for row in rows]
    mixed = [row[inner : 2 * inner + 2 * shared] for row in projected]
    a = [-math.exp(x) for x in module.A_log.tolist()]
    bias, skip = module.dt_bias.tolist(), module.D.tolist()
    state = [[[0.0] * n for _ in range(width)] for _ in range(heads)]
    out = []
    for s, row in enumerate(projected):
        now = [silu(v) for v in convolved(module.conv1d, mixed, s)]
        x = parts(now[:inner], width)
        b, c = parts(now[inner : inner + shared], n), parts(now[inner + shared :], n)
        y: Row = []
        for h in range(heads):
            group = h * part.n_groups // heads
            step = softplus(row[-heads:][h] + bias[h])
            step = min(max(step, part.dt_min or 0.0), part.dt_max or math.inf)
            for p in range(width):
                kept = times(state[h][p], math.exp(step * a[h]))
                state[h][p] = [old + step * x[h][p] * b[group][i] for i, old in enumerate(kept)]
                y.append(dot(state[h][p], c[group]) + skip[h] * x[h][p])
        out.append(linear(module.out_proj, gated(module, y, row[:inner], part)))
    return out


def gated(module: Any, y: Row, z: Row, part: Mamba2) -> Row:
    """Gate and norm of each group, in one order or the other; or the gate alone."""
    gates = [silu(v) for v in z]
    if part.norm == "none":
        return [v * g for v, g in zip(y, gates, strict=True)]
    if part.norm == "gated":
        y = [v * g for v, g in zip(y, gates, strict=True)]
    eps, normed, size = part.norm_eps or EPS, [], len(y) // part.n_groups
    weights = parts(module.norm.weight.tolist(), size)
    for group, weight in zip(parts(y, size), weights, strict=True):
        normed += rms_norm(group, eps, weight)
    if part.norm == "gated":
        return normed
    return [v * g for v, g in zip(normed, gates, strict=True)]


def mlstm_by_loop(module: Any, rows: Rows, part: MLstm) -> Rows:
    """Exponents as they are: only what is added to the divisor knows the highest one."""
    cells, sums, highest = [empty(5, 7) for _ in range(3)], empty(3, 5), [0.0] * 3
    cap, eps, out = part.gate_softcap, part.norm_eps or EPS, []
    for row in rows:
        q, k = parts(times(linear(module.q, row), 5**-0.5), 5), parts(linear(module.k, row), 5)
        v, y = parts(linear(module.v, row), 7), []
        gates = [linear(gate, row) for gate in (module.igate_preact, module.fgate_preact)]
        for h, cell in enumerate(cells):
            i, f = (cap * math.tanh(gate[h] / cap) for gate in gates)
            highest[h] = max(math.log(sigmoid(f)) + highest[h], i)
            for n, key in enumerate(k[h]):
                cell[n] = add(times(cell[n], sigmoid(f)), times(v[h], math.exp(i) * key))
            sums[h] = add(times(sums[h], sigmoid(f)), times(k[h], math.exp(i)))
            divisor = max(abs(dot(q[h], sums[h])), 1.0) + part.divisor_eps * math.exp(highest[h])
            read = [dot(q[h], [of[j] for of in cell]) / divisor for j in range(7)]
            y += layer_norm(read, eps)
        weighed = [x * w for x, w in zip(y, module.multihead_norm.weight.tolist(), strict=True)]
        gate = [sigmoid(x) for x in linear(module.ogate_preact, row)]
        out.append(linear(module.out_proj, [x * g for x, g in zip(weighed, gate, strict=True)]))
    return out


def short_by_loop(module: Any, rows: Rows, part: ShortConv) -> Rows:
    three = [parts(linear(module.in_proj, row), D) for row in rows]
    inner = [[b * x for b, x in zip(first, last, strict=True)] for first, _, last in three]
    out = []
    for s, (_, gates, _) in enumerate(three):
        y = convolved(module.conv, inner, s)
        out.append(linear(module.out_proj, [c * v for c, v in zip(gates, y, strict=True)]))
    return out


def griffin_by_loop(module: Any, rows: Rows, part: RgLru) -> Rows:
    lru, state, out = module.rg_lru, [0.0] * part.lru_width, []
    lambdas = lru.recurrent_param.tolist()
    read = [linear(module.linear_x, row) for row in rows]

    def gate(name: str, x: Row) -> Row:
        """One block of columns after the other."""
        weights, biases = (lru.get_parameter(f"{name}_gate_{end}") for end in ("weight", "bias"))
        blocks = zip(weights.tolist(), parts(x, len(x) // part.n_lru_blocks), strict=True)
        y = [v for weight, block in blocks for v in matrix([*zip(*weight, strict=True)], block)]
        return [sigmoid(v) for v in add(y, biases.flatten().tolist())]

    for s, row in enumerate(rows):
        x = convolved(module.conv_1d, read, s)
        i_gate, r_gate = gate("input", x), gate("recurrent", x)
        for c in range(part.lru_width):
            a = math.exp(-8 * r_gate[c] * softplus(lambdas[c]))
            factor = math.sqrt(1 - a * a) if s else 1.0
            state[c] = a * state[c] + factor * i_gate[c] * x[c]
        y = [SCALAR[part.activation](v) for v in linear(module.linear_y, row)]
        out.append(linear(module.linear_out, [h * v for h, v in zip(state, y, strict=True)]))
    return out


Loop = Callable[..., Rows]
LAST = {"layer": N_LAYERS - 1}
# a part, its loop, and the layer that it is made for
CASES: dict[str, tuple[Any, Loop, dict[str, int]]] = {
    "gated delta": (DELTA, gated_delta_by_loop, {}),
    "gated delta, a key head a value head": (
        altered(DELTA, n_k_heads=4, chunk_size=1), gated_delta_by_loop, {}),
    "gated delta, negative eigenvalues": (
        altered(DELTA, negative=True, norm_eps=0.7, chunk_size=64), gated_delta_by_loop, {}),
    "kimi delta": (KIMI, kimi_delta_by_loop, {}),
    "kimi delta, chunks of one": (altered(KIMI, chunk_size=1), kimi_delta_by_loop, {}),
    "kimi delta, one chunk": (altered(KIMI, chunk_size=64), kimi_delta_by_loop, {}),
    "lightning": (LIGHTNING, lightning_by_loop, {"layer": 2}),
    "lightning, chunks of one": (altered(LIGHTNING, chunk_size=1), lightning_by_loop, {"layer": 0}),
    "lightning, last layer": (
        altered(LIGHTNING, norm_eps=0.7, chunk_size=64), lightning_by_loop, LAST),
    "mamba": (MAMBA, mamba_by_loop, {}),
    "mamba, biases": (altered(MAMBA, **BIASED), mamba_by_loop, {}),
    "mamba, plain convolution": (altered(MAMBA, conv_bias=False), mamba_by_loop, {}),
    "mamba, norms": (altered(MAMBA, norms="affine"), mamba_by_loop, {}),
    "mamba, norms without weights": (
        altered(MAMBA, norms="plain", norm_eps=0.3), mamba_by_loop, {}),
    "mamba, kernel of one": (altered(MAMBA, conv_kernel=1), mamba_by_loop, {}),
    "mamba 2": (MAMBA2, mamba2_by_loop, {}),
    "mamba 2, biases": (altered(MAMBA2, **BIASED), mamba2_by_loop, {}),
    "mamba 2, plain convolution": (altered(MAMBA2, conv_bias=False), mamba2_by_loop, {}),
    "mamba 2, norm before the gate": (
        altered(MAMBA2, norm="before_gate", norm_eps=0.3), mamba2_by_loop, {}),
    "mamba 2, gate alone": (altered(MAMBA2, norm="none"), mamba2_by_loop, {}),
    "mamba 2, limits of a step": (altered(MAMBA2, dt_min=0.4, dt_max=0.9), mamba2_by_loop, {}),
    "mamba 2, one group": (altered(MAMBA2, n_groups=1, chunk_size=64), mamba2_by_loop, {}),
    "mamba 2, a group a head": (altered(MAMBA2, n_groups=6), mamba2_by_loop, {}),
    "mamba 2, one head": (altered(MAMBA2, n_heads=1, n_groups=1), mamba2_by_loop, {}),
    "mamba 2, chunks of two": (altered(MAMBA2, chunk_size=2), mamba2_by_loop, {}),
    "mlstm": (altered(MLSTM, divisor_eps=0.1), mlstm_by_loop, {}),
    "mlstm, chunks of two": (altered(MLSTM, chunk_size=2, norm_eps=0.7), mlstm_by_loop, {}),
    "mlstm, a low cap": (altered(MLSTM, chunk_size=64, gate_softcap=0.5), mlstm_by_loop, {}),
    "short": (SHORT, short_by_loop, {}),
    "short, plain": (altered(SHORT, conv_kernel=4, conv_bias=False), short_by_loop, {}),
    "short, kernel of one": (altered(SHORT, conv_kernel=1), short_by_loop, {}),
    "griffin": (GRIFFIN, griffin_by_loop, {}),
    "griffin, kernel of two": (
        altered(GRIFFIN, conv_kernel=2, activation="gelu"), griffin_by_loop, {}),
}  # fmt: skip
LENGTHS = (1, 3, 4, 5, 8, 9)  # shorter than a chunk, equal to, longer
CUTS = ((1,) * 9, (3, 1, 5), (4, 4, 1), (8, 1), (2, 7))


def made(part: Any, depth: dict[str, int]) -> Any:
    return randomised(make_recurrent(part, D, RMS, n_layers=N_LAYERS, **depth))


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_papers_loop(name: str) -> None:
    part, loop, depth = CASES[name]
    module = made(part, depth)
    for length in LENGTHS if "," not in name else LENGTHS[1::2]:
        x = torch.randn(2, length, D, dtype=torch.float64)
        assert_near(module(x), [loop(module, rows, part, **depth) for rows in x.tolist()])


@pytest.mark.parametrize("name", CASES)
def test_it_has_the_tensors_of_the_formula(name: str) -> None:
    """Which are counted by hand in `tests/formulas/test_by_hand.py`."""
    part, _, depth = CASES[name]
    run = {"batch_size": 1, "n_queries": 2, "n_keys": 2}
    tape = Tape(Run(counts={TOKENS: 2, **mixer_counts(part, 1, 2, decode=False)}, **run))
    run_mixer(tape, part, tape.tensor(D, TOKENS, grad=True))
    found = [(path, tuple(p.shape)) for path, p in made(part, depth).named_parameters()]
    counted = [(weight.name.partition(".")[2], weight.shape) for weight in tape.weights]
    assert sorted(found) == sorted(counted)


def kept(part: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of what is kept of a sequence."""
    width = getattr(part, "conv_kernel", 0)
    match part:
        case GatedDelta():
            return {"conv": (10 * part.n_k_heads + 28, width), "recurrent": (4, 5, 7)}
        case KimiDelta():
            return {"conv": (45, width), "recurrent": (3, 5, 5)}
        case Lightning():
            return {"recurrent": (3, 5, 5)}
        case Mamba():
            return {"conv": (6, width), "recurrent": (6, 5)}
        case Mamba2():
            channels = part.n_heads * 5 + 2 * part.n_groups * 7
            return {"conv": (channels, width), "recurrent": (part.n_heads, 5, 7)}
        case MLstm():
            return {"cell": (3, 5, 7), "normalizer": (3, 5), "highest": (3,)}
        case ShortConv():
            return {"conv": (D, width)}
    return {"conv": (10, width - 1), "recurrent": (10,)}


@pytest.mark.parametrize("lengths", CUTS, ids=str)
@pytest.mark.parametrize(
    ("part", "depth"),
    [(part, depth) for part, _, depth in CASES.values()],
    ids=[*CASES],
)
def test_in_pieces_it_is_the_same(
    part: Any, depth: dict[str, int], lengths: tuple[int, ...]
) -> None:
    """Chunks, steps, and what goes on from a state, in storage of just its size."""
    module, x = made(part, depth), torch.randn(2, 9, D, dtype=torch.float64)
    pieces, cache = in_pieces(module, x, *lengths)
    assert_near(pieces, module(x))
    states = {name: tuple(state.shape) for name, state in cache.states.items()}
    assert states == {name: (2, *shape) for name, shape in kept(part).items()}
    for state in cache.states.values():
        assert state.untyped_storage().nbytes() == 8 * state.numel()
    assert cache.length == 9


@pytest.mark.parametrize("name", [name for name in CASES if "," not in name])
def test_the_loop_notices_any_tensor(name: str) -> None:
    """One value of one tensor changed between the two."""
    part, loop, depth = CASES[name]
    x = torch.randn(1, 6, D, dtype=torch.float64)
    found = made(part, depth)(x)
    for planted, _ in made(part, depth).named_parameters():
        module = made(part, depth)
        with torch.no_grad():
            module.get_parameter(planted).view(-1)[0] += 0.1
        with pytest.raises(AssertionError):
            assert_near(found, [loop(module, x[0].tolist(), part, **depth)])


def test_a_state_that_decays_fast_stays_finite() -> None:
    """Where exp(-log α) of one of two positions is infinite, or exp of a difference 0 · inf."""
    q, k, v, state = (torch.randn(2, 3, *shape).double() for shape in ((40, 5),) * 3 + ((5, 5),))
    beta, decay = 2 * torch.rand(2, 3, 40).double(), torch.full((2, 3, 40, 5), -300.0).double()
    for chunks, width in ((gated_delta.in_chunks, 1), (kimi_delta.in_chunks, 5)):
        given = decay[..., 0] if width == 1 else decay
        found, _ = chunks(q, k, v, given, beta, state, 40)
        expected = gated_delta.step_by_step(q, k, v, decay[..., :width], beta, state)[0]
        assert_near(found, expected)
    x, b, c = (torch.randn(1, 40, 1, n).double() for n in (2, 3, 3))
    states = torch.zeros(1, 1, 2, 3).double()
    found, _ = mamba2.in_chunks(x, decay[:1, :1, :, 0].mT, b, c, None, 40)
    assert_near(found, mamba2.step_by_step(x, decay[:1, :1, :, 0].mT, b, c, states)[0])
