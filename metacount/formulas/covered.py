"""What the formulas of training are refused for: structures, and ways to run attention."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas.dim import Dim, is_symbolic
from metacount.formulas.tape import EAGER, FLASH, SDPA, Pass
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention, LatentAttention, NoAttention
from metacount.spec.mixers import Mamba2
from metacount.spec.position import Alibi, RelativeBuckets, TransformerXL
from metacount.spec.rules import AROUND, beyond_branches

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable

# One kind of layer, with attention and nothing beside it: of each field the value that says so.
ALIKE = {
    "recurrent": "none",
    "mixer_pattern": "A",
    "ffn_pattern": "F",
    "n_zero_experts": 0,
    "output_gate": False,
    "index_top_k": None,
    "index_block_len": None,
    "attention_out_scale": 1.0,
    "gate_scale": 1.0,
    "ffn_scale": 1.0,
    "residual_weight": 1.0,
    **AROUND,
}
NORMS_AFTER = ("post", "deep", "sandwich", "post_branch")  # a norm after each branch
PLACEMENTS = ("pre", "post", "deep", "post_branch", "sandwich", "parallel", "parallel_two")


def check_alike(spec: ModelSpec, what: str = "for training", *, but: tuple[str, ...] = ()) -> None:
    """Raise `SpecError` unless every layer has attention and a feed-forward, and no more.

    Conventions of training are of such models alone; `what` has no formula of others. The fields
    of `but` may have any value.
    """
    for name, plain in ALIKE.items():
        value = plain if name in but else getattr(spec, name)
        # a pattern may be longer
        same = set(str(value)) == set(str(plain)) if name.endswith("_pattern") else value == plain
        if not same:
            raise SpecError(name, f"has no formula {what}", value, "measure it instead")
    if spec.norm_placement not in PLACEMENTS:
        raise SpecError(
            "norm_placement",
            f"has no formula {what}",
            spec.norm_placement,
            "measure it instead",
        )


def check_loss(spec: ModelSpec) -> None:
    """Raise `SpecError` for a model without logits."""
    if spec.embedding is None or spec.head is None:
        rule = "has no formula for training: without logits there is no loss"
        name = "has_head" if spec.embedding else "vocab_size"
        raise SpecError(name, rule, getattr(spec, name), "choose a model with an output head")


def check_saved(spec: ModelSpec, run: Pass) -> None:
    """Raise `SpecError` where what a step saves has no formula."""
    check_loss(spec)
    check_run(spec, run)
    check_around(spec)
    check_reached(spec)
    last, part = spec.last_stack, spec.last_stack.recurrent
    window = last.attention.window
    width = run.bytes_per_value
    if width not in (2, 4, 8):
        rule = "has no formula for what a backward keeps"
        raise SpecError("dtype", rule, width, "choose bf16, fp16, fp32 or fp64")
    rows = (
        (
            window is not None
            and set(window.pattern) != {"L"}
            and isinstance(spec.positions, RelativeBuckets | Alibi),
            (
                "window_pattern",
                "has no formula for training with a bias of positions",
                "leave the window out",
            ),
        ),
        (
            isinstance(part, Mamba2) and _may_be_one(part.n_heads),
            # torch takes such a tensor for an image, whose channels it lays last
            ("n_ssm_heads", "has no formula for training", "choose 2 or more, or measure it"),
        ),
    )
    _refuse(spec, rows)


def check_written(amounts: Iterable[Dim]) -> None:
    """Raise `SpecError` for a logarithm: closed forms are of sums, products, floors and least ones.

    A scan that doubles its reach needs log2(seq_len) rounds, and saves something in each.
    """
    for amount in amounts:
        if is_symbolic(amount) and "log(" in str(amount):
            raise SpecError(
                "seq_len",
                "has no form in letters where a scan doubles its reach, in log2(seq_len) rounds",
                None,
                "count with numbers, or choose full checkpointing",
            )


def _may_be_one(x: Dim) -> bool:
    if isinstance(x, int):
        return x == 1
    return hasattr(x, "dtype") and 1 in x


def _refuse(spec: ModelSpec, rows: Iterable[tuple[bool, tuple[str, str, str]]]) -> None:
    for wrong, (field, rule, remedy) in rows:
        if wrong:
            raise SpecError(field, rule, getattr(spec, field), remedy)


def check_around(spec: ModelSpec) -> None:
    """Raise `SpecError` for what Gemma 3n has: what it saves and repeats is measured."""
    name = beyond_branches(spec)
    if name:
        rule = "has no formula for what training keeps"
        raise SpecError(name, rule, getattr(spec, name), "measure it instead")


def check_reached(spec: ModelSpec) -> None:
    """Raise `SpecError` where the loss does not see all parameters: of embeddings that go nowhere.

    Each layer's own embedding is added to all copies of the stream but the first.
    """
    part = spec.last_stack.altup
    alone = part is not None and isinstance(part.n_inputs, int) and part.n_inputs == 1
    if alone and spec.last_stack.layer_inputs is not None:
        raise SpecError(
            "n_altup_inputs",
            "has no formula for training: of one copy, d_per_layer is added to none",
            1,
            "measure it instead, or choose 2 or more",
        )


def check_run(spec: ModelSpec, run: Pass) -> None:
    """Raise `SpecError` for attention that a fused kernel is asked for and does not compute."""
    mixer, positions = spec.last_stack.attention, spec.positions
    if run.attention == EAGER or isinstance(mixer, NoAttention):
        return
    check_fused(mixer, wide=run.attention == FLASH)
    if run.attention == SDPA:
        return
    chunked = mixer.window is not None and mixer.window.kind == "chunked"
    biased = isinstance(positions, Alibi | RelativeBuckets | TransformerXL)
    mask, adds = (
        f"has no formula with fused attention: it {why}"
        for why in ("needs a mask", "adds to scores")
    )
    rows = (
        (chunked, ("window_kind", mask, "choose attention eager")),
        (spec.kind == "prefix-decoder", ("kind", mask, "choose attention eager")),
        (biased, ("position", adds, "choose attention eager")),
    )
    _refuse(spec, rows)


def check_fused(part: Attention | LatentAttention, *, wide: bool = True) -> None:
    """Raise `SpecError` for what a fused kernel does not compute: a cap on scores, sinks, a choice.

    `wide`: values that are wider than the keys, too.
    """
    known: dict[str, object] = {"attention_softcap": part.softcap}
    if isinstance(part, Attention):
        known["attention_sinks"] = part.sinks or None
        if part.indexer is not None:
            known["index_block_len"] = part.indexer.block_len  # a mask, which no kernel takes
    else:
        if wide and isinstance(part.v_head_dim, int):
            # wider than the keys it is no such kernel's; of one value torch copies no result
            keys = part.qk_nope_head_dim + part.qk_rope_head_dim
            known["v_head_dim"] = (
                part.v_head_dim if part.v_head_dim > keys or part.v_head_dim == 1 else None
            )
        if part.indexer is not None:
            known["index_top_k"] = part.indexer.top_k
    for name, value in known.items():
        if value is not None:
            raise SpecError(
                name, "has no formula with fused attention", value, "choose attention eager"
            )
