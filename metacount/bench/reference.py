"""The layers in float64 and plain algebra: what every variant must agree with.

Nothing here is shared with the variants: no module, no fused operator, one head, one expert and
one row at a time where that is the definition. `rows` picks the tokens (or queries) to compute;
each is independent of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

ROOT_2 = math.sqrt(2.0)


def gelu(x: Tensor) -> Tensor:
    """Compute x·Φ(x)."""
    return x * (1 + torch.erf(x / ROOT_2)) / 2


def silu(x: Tensor) -> Tensor:
    """Compute x / (1 + e^-x)."""
    return x / (1 + torch.exp(-x))


def gelu_slope(x: Tensor) -> Tensor:
    """Compute the derivative of x·Φ(x): Φ(x) + x·φ(x)."""
    density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return (1 + torch.erf(x / ROOT_2)) / 2 + x * density


def silu_slope(x: Tensor) -> Tensor:
    """Compute the derivative of x·s, s = 1 / (1 + e^-x): s·(1 + x·(1 - s))."""
    s = 1 / (1 + torch.exp(-x))
    return s * (1 + x * (1 - s))


def ffn(x_ND: Tensor, *weights: Tensor) -> Tensor:
    """Compute down·gelu(up·x), or down·(silu(gate·x)·(up·x)) of three weights, in float64."""
    *first, down = (w.detach().double() for w in weights)
    outs = [x_ND.double() @ w.T for w in first]
    hidden = gelu(outs[0]) if len(outs) == 1 else silu(outs[0]) * outs[1]
    return hidden @ down.T


def ffn_gradients(
    x_ND: Tensor, grad_ND: Tensor, weights: Sequence[Tensor], rows: list[int], units: list[int]
) -> list[Tensor]:
    """Compute output and gradients of `ffn`, given the output's, in float64.

    Returns: `rows` of the output and of the input's gradient, then `units` (hidden ones) of each
    weight's gradient, `down` transposed: [rows, D] twice, [units, D] each.
    """
    x, grad = x_ND.double(), grad_ND.double()
    *first, down = (w.detach().double() for w in weights)

    def inside(tokens: list[int] | slice, chosen: list[int] | slice) -> tuple[Tensor, list[Tensor]]:
        # hidden values, and the gradients of what the first matrices give
        outs = [x[tokens] @ w[chosen].T for w in first]
        d = grad[tokens] @ down[:, chosen]
        if len(outs) == 1:
            return gelu(outs[0]), [d * gelu_slope(outs[0])]
        gate, up = outs
        return silu(gate) * up, [d * up * silu_slope(gate), d * silu(gate)]

    hidden, slopes = inside(rows, slice(None))
    unit_hidden, unit_slopes = inside(slice(None), units)
    dx = torch.stack([d @ w for d, w in zip(slopes, first, strict=True)]).sum(0)
    return [hidden @ down.T, dx, *(d.T @ x for d in unit_slopes), unit_hidden.T @ grad]


def moe(
    x_ND: Tensor,
    chosen_Nk: Tensor,
    router_ED: Tensor,
    gate_up_EXD: Tensor,
    down_EDM: Tensor,
) -> Tensor:
    """Sum softmax(chosen router logits) · expert(x) over each token's experts, token by token."""
    width = down_EDM.shape[-1]
    out = torch.zeros(x_ND.shape, dtype=torch.float64, device=x_ND.device)
    for n in range(len(x_ND)):
        experts = chosen_Nk[n].tolist()
        scores = [torch.dot(router_ED[e].double(), x_ND[n].double()).exp() for e in experts]
        for e, score in zip(experts, scores, strict=True):
            gate, up = gate_up_EXD[e, :width], gate_up_EXD[e, width:]
            y = ffn(x_ND[n : n + 1], gate, up, down_EDM[e])
            out[n] += score / sum(scores) * y[0]
    return out


def attend(q_SK: Tensor, k_TK: Tensor, v_TU: Tensor, positions: list[int], scale: float) -> Tensor:
    """Compute softmax(scale·q·kᵀ)·v of one head, each query over the positions up to its own."""
    out = []
    for q_K, position in zip(q_SK, positions, strict=True):
        weights = torch.exp(scale * (k_TK[: position + 1] @ q_K))
        out.append((weights / weights.sum()) @ v_TU[: position + 1])
    return torch.stack(out)


def attention(
    x_SD: Tensor,
    past_k_GTK: Tensor,
    past_v_GTK: Tensor,
    weights: Sequence[Tensor],
    n_heads: int,
    rows: list[int],
) -> Tensor:
    """Attend in one sequence: new tokens after a past of keys and values; [rows, D] in float64.

    `weights` of queries, keys, values and the output.
    """
    q_w, k_w, v_w, o_w = (w.double() for w in weights)
    x = x_SD.double()
    n_kv_heads, past, width = past_k_GTK.shape
    heads = []
    for h in range(n_heads):
        g = h // (n_heads // n_kv_heads)
        mine, shared = slice(h * width, (h + 1) * width), slice(g * width, (g + 1) * width)
        k = torch.cat((past_k_GTK[g].double(), x @ k_w[shared].T))
        v = torch.cat((past_v_GTK[g].double(), x @ v_w[shared].T))
        positions = [past + row for row in rows]
        heads.append(attend(x[rows] @ q_w[mine].T, k, v, positions, width**-0.5))
    return torch.cat(heads, dim=-1) @ o_w.T


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute x / sqrt(mean(x²) + eps) · weight, in float64."""
    x = x.double()
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + eps) * weight.double()


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Compute (x - mean) / sqrt(variance + eps) · weight + bias, in float64."""
    x = x.double()
    centred = x - x.sum(-1, keepdim=True) / x.shape[-1]
    variance = (centred * centred).sum(-1, keepdim=True) / x.shape[-1]
    return centred / torch.sqrt(variance + eps) * weight.double() + bias.double()


def rotate(
    x_SP: Tensor, positions: list[int], theta: float, angles: torch.dtype = torch.float64
) -> Tensor:
    """Turn each pair of columns (2i, 2i + 1), a complex number, by position·theta^(-2i/P).

    The angle is rounded to `angles`, twice: each theta^(-2i/P), and its product with the position.
    At position 131,072 half a unit in the last place of float32 is 0.004 radians; a model that
    is defined with float32 angles is not wrong by that.
    """
    width = x_SP.shape[-1]
    device = x_SP.device
    powers = [theta ** (-i / width) for i in range(0, width, 2)]
    places = torch.tensor(positions, dtype=angles, device=device)
    angle = (places[:, None] * torch.tensor(powers, dtype=angles, device=device)).double()
    x = torch.complex(x_SP[:, 0::2], x_SP[:, 1::2])
    turned = x * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2)


def latent_attention(
    x_SD: Tensor,
    past_Tc: Tensor,
    weights: dict[str, Tensor],
    sizes: tuple[int, int, int, int, int],
    rows: list[int],
    *,
    theta: float,
    eps: float,
) -> Tensor:
    """Compute MLA of one sequence by its definition: every head's keys and values made; [rows, D].

    `sizes` are n_heads, kv_lora_rank and the head widths d_n, d_r, d_v; `past_Tc` holds normed
    latents and rotated keys.
    """
    n_heads, rank, nope, rope, value = sizes
    w = {name: weight.double() for name, weight in weights.items()}
    x, past = x_SD.double(), len(past_Tc)
    # the model takes angles in float32, and in float64 where its input is
    angles = torch.float64 if x_SD.dtype == torch.float64 else torch.float32
    if "q_a_proj" in w:
        q_all = rms_norm(x[rows] @ w["q_a_proj"].T, w["q_a_layernorm"], eps) @ w["q_b_proj"].T
    else:
        q_all = x[rows] @ w["q_proj"].T
    compressed = x @ w["kv_a_proj_with_mqa"].T
    normed = rms_norm(compressed[:, :rank], w["kv_a_layernorm"], eps)
    latent = torch.cat((past_Tc[:, :rank].double(), normed))
    new = [past + s for s in range(len(x))]
    rotated = torch.cat(
        (past_Tc[:, rank:].double(), rotate(compressed[:, rank:], new, theta, angles))
    )
    positions, heads = [past + row for row in rows], []
    for h in range(n_heads):
        q = q_all[:, h * (nope + rope) : (h + 1) * (nope + rope)]
        q = torch.cat((q[:, :nope], rotate(q[:, nope:], positions, theta, angles)), dim=-1)
        expand = w["kv_b_proj"][h * (nope + value) : (h + 1) * (nope + value)]
        k = torch.cat((latent @ expand[:nope].T, rotated), dim=-1)
        heads.append(attend(q, k, latent @ expand[nope:].T, positions, (nope + rope) ** -0.5))
    return torch.cat(heads, dim=-1) @ w["o_proj"].T
