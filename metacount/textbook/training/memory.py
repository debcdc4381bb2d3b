"""The amounts of memory that conventions of training name: what blocks keep, and what is stored.

J  16-bit tensors that products and activations of all blocks keep, pairs of positions apart, with
   keys and values of every key/value head once
N  the input of every norm of the blocks, in 16 bits, which is all that a fused norm keeps
O  masks of a dropout at the end of every branch, a byte a value
V  5 bytes a pair of positions and head: the softmax, the mask of its dropout and the result
I  every parameter that is trained in 16 bits
F  the same in 32 bits
S  Adam's two moments of each in 32 bits
"""

from __future__ import annotations

from metacount.formulas.dim import Dim, when
from metacount.formulas.step import block_stores, check_alike, check_saved
from metacount.formulas.sublayers import norms_per_block
from metacount.formulas.tape import Pass, params_of, several
from metacount.formulas.trained import MASTER, STEP, adamw_state, trained_tensors
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention

SIXTEEN = 2  # bytes of a value in 16 bits
PAIR = 2 + 1 + 2  # softmax, mask, result


def activation_amounts(spec: ModelSpec, batch_size: Dim, seq_len: Dim) -> dict[str, Dim]:
    """Count what the blocks of a model keep, by the letters J, N, O and V."""
    run = Pass(batch_size=batch_size, seq_len=seq_len, bytes_per_value=SIXTEEN)
    check_alike(spec)
    check_saved(spec, run)
    stack, n_layers, tokens = spec.last_stack, spec.last_stack.n_layers, batch_size * seq_len
    kept = [
        times * store.bytes
        for times, role, store, is_of_pairs in block_stores(spec, run)
        if role != "norm" and store.width == SIXTEEN and not is_of_pairs
    ]
    placement, mixer = stack.norms.placement, stack.attention
    n_norms = n_layers * norms_per_block(placement) - when(not stack.norms.first, 1)
    branches = 2 * n_layers
    return {
        "J": sum(kept) - _repeated(mixer, batch_size, tokens) * n_layers,
        "N": SIXTEEN * n_norms * tokens * spec.d_model,
        "O": branches * tokens * spec.d_model,
        "V": PAIR * n_layers * spec.n_heads * tokens * seq_len,
    }


def _repeated(mixer: object, batch_size: Dim, tokens: Dim) -> Dim:
    """Count the bytes by which a product written out copies keys
    and values for every query head.
    """
    if not isinstance(mixer, Attention):
        return 0
    copied = several(batch_size * mixer.n_kv_heads) * (mixer.n_heads - mixer.n_kv_heads)
    return 2 * SIXTEEN * tokens * copied * mixer.head_dim


def stored_amounts(spec: ModelSpec) -> dict[str, Dim]:
    """Count what is stored of a model that is trained, by the letters I, F and S."""
    tensors = trained_tensors(spec).all
    trained = params_of(tensors)
    # the moments alone: nobody counts the 4 bytes of a step counter of each tensor
    moments = sum(w.times * (adamw_state(w, MASTER) - STEP) for w in tensors)
    return {"I": SIXTEEN * trained, "F": MASTER * trained, "S": moments}


def inputs_of_blocks(spec: ModelSpec, run: Pass) -> Dim:
    """Count the bytes that blocks keep with full checkpointing: the input of each.

    >>> from metacount.catalog import entry
    >>> inputs_of_blocks(entry("llama-7b").spec(), Pass(batch_size=1, seq_len=2048))
    536870912
    """
    tokens = run.batch_size * run.seq_len
    return spec.last_stack.n_layers * tokens * spec.d_model * run.bytes_per_value
