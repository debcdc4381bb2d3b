"""Mamba: a selective state space; and what it has in common with Mamba-2."""

from __future__ import annotations

from metacount.spec.field import choice, flag, number, part, size
from metacount.spec.recurrent import Recurrent


@part
class StateSpace(Recurrent):
    """What both have: a state for each channel, a convolution before it, projections around it."""

    state_dim: int = size(
        "ssm_state_dim",
        "d_s",
        "values of the state that each channel keeps",
        "values",
        "state_size d_state mamba_d_state ssm_state_size",
    )
    conv_bias: bool = flag("ssm_conv_bias", "a bias on the convolution", default=True)
    in_bias: bool = flag("ssm_in_bias", "a bias on the projection into it", default=False)
    out_bias: bool = flag("ssm_out_bias", "a bias on the projection out of it", default=False)
    norm_eps: float | None = number(
        "ssm_norm_eps", "added inside its norms' root; none: as in other norms", default=None
    )


@part
class Mamba(StateSpace):
    """Mamba: every channel and value of the state has a decay of its own."""

    word = "mamba"

    d_ssm: int = size("d_ssm", "d_i", "channels of a Mamba mixer, each with a state", "channels")
    dt_rank: int = size(
        "dt_rank",
        "r_t",
        "rank of the projection that gives each channel its step",
        "values",
        "time_step_rank mamba_dt_rank",
    )
    norms: str = choice(
        "ssm_inner_norms",
        "RMSNorm of the step, of B and of C: with weights, without, or none",
        "none",
        "affine",
        "plain",
        default="none",
    )
