"""A step that trains a part of a model: the rest is frozen, or adapters alone are trained.

The blocks are gone through in order, as a gradient exists from the first trained tensor on.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas import model
from metacount.formulas.covered import check_alike
from metacount.formulas.dim import Dim
from metacount.formulas.forward import NONE, SELECTIVE, Kept, Pass
from metacount.formulas.kept_ends import head_terms, table_terms
from metacount.formulas.kept_masks import handed_to_blocks
from metacount.formulas.kept_model import check_covered, check_loss, repeated
from metacount.formulas.named import LAYERS, blocks, stack_name
from metacount.formulas.optimizer import add
from metacount.formulas.part import Tensors
from metacount.formulas.terms import Weight
from metacount.formulas.trained import HEAD
from metacount.formulas.wires import Step, Wires
from metacount.formulas.wires_attention import Given
from metacount.formulas.wires_block import follow_block
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.position import Learned, TransformerXL

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable

    from metacount.spec.stack import Stack

# a factor on a tensor keeps nothing, nor does an indexer
NOTHING_KEPT = (
    "index_top_k",
    "index_block_len",
    "attention_out_scale",
    "gate_scale",
    "ffn_scale",
    "residual_weight",
)
PARTLY = "where a part of the model is trained"


@frozen
class Partly:
    """What a step of a part of a model multiplies and keeps, by role."""

    matmul_flops: dict[str, Dim]
    backward_matmul_flops: dict[str, Dim]
    recompute_matmul_flops: dict[str, Dim]
    activation_bytes: dict[str, Dim]


@frozen
class _Block:
    """One block as it ran; whether its result has a gradient, whether it keeps the memory."""

    wires: Wires
    flows: bool
    of_memory: bool


class _Follower:
    """Goes through a model and sums what its blocks and ends multiply and keep."""

    def __init__(self, spec: ModelSpec, run: Pass, tensors: Tensors) -> None:
        self.spec, self.run, self.tensors = spec, run, tensors
        self.steps: list[Step] = []
        self.again: list[Step] = []
        self.kept: list[Kept] = []
        self._known: dict[object, _Block] = {}
        self._local: dict[str, dict[str, Weight]] = {}
        for path, weight in tensors.stored.items():
            owner, name = _owner(path)
            self._local.setdefault(owner, {})[name] = weight

    def wires(self, owner: str) -> Wires:
        """Make `Wires` for the tensors of a block, of a stack's ends, or of the model's ("")."""
        local = self._local.get(owner, {})
        lead = f"{owner}." if owner else ""
        trained = {name for name in local if f"{lead}{name}" in self.tensors.trained}
        return Wires(local, trained, self.run.widths, self.spec.last_stack.norms)

    def ran(self, wires: Wires) -> None:
        """Add what ends multiplied and kept to the sums of the model."""
        self.steps += wires.steps
        self.kept += wires.kept

    def run_all(self) -> None:
        """Go through the whole forward."""
        spec, run = self.spec, self.run
        lengths = [run.source, run.seq_len] if spec.has_encoder else [run.seq_len]
        x = False
        for part, n in zip(spec.stacks, lengths, strict=True):
            x = self._stack(part, n, memory=x)
        self._head(x)

    def _stack(self, part: Stack, n: Dim, *, memory: bool) -> bool:
        spec, run, path = self.spec, self.run, stack_name(self.spec, part)
        ends, wires = self.wires(""), self.wires(path)
        x, bias = self._look_up(part, n, ends, wires)
        cross = spec.has_encoder and part is spec.decoder
        n_kept, of_memory = 0, False
        for block_path, its, index, _ in blocks(spec):
            if its is not part:
                continue
            given = Given(x=x, bias=bias, memory=memory)
            block = self._block(block_path, n, index, given, cross=cross)
            of_memory = of_memory or block.of_memory
            x = block.flows
            n_kept += block.wires.needs
        if run.checkpointing != NONE and n_kept:
            values = run.batch_size * n * spec.d_model
            width = run.widths.value
            one = Kept(role="other", name="input of a block", values=values, width=width)
            self.kept += [repeated(one, n_kept), *handed_to_blocks(spec, run, n)]
        if cross and (of_memory if run.checkpointing == NONE else n_kept):
            self.kept.append(
                Kept(
                    role="attention",
                    name="what the encoder gave",
                    values=run.batch_size * run.source * spec.d_model,
                    width=run.widths.value,
                )
            )
        if part.norms.final:
            x = wires.norm("norm", "last norm", x, run.batch_size * n, spec.d_model)
        self.ran(wires)
        return x

    def _look_up(self, part: Stack, n: Dim, ends: Wires, wires: Wires) -> tuple[bool, bool]:
        """Run the tables before a stack; say whether x, and a bias of scores, have a gradient."""
        spec, run, tables = self.spec, self.run, self.spec.embedding
        assert tables is not None  # who asks has asked
        gradients = {
            name
            for name, book in (
                ("embed_tokens", ends),
                ("embed_types", ends),
                ("embed_positions", wires),
                ("relative_bias", wires),
            )
            if any(path.startswith(f"{name}.") for path in book.trained)
        }
        bias = "relative_bias" in gradients
        x = bool(gradients - {"relative_bias"})
        if tables.norm:
            x = wires.normed("embed_norm", "norm of the embedding", x, gradients)
        if tables.width is not None:
            x = wires.linear("embed_proj", x, run.batch_size * n, "embed_proj", gradients)
        wires.keep(table_terms(spec, run, n), gradients)
        return x, bias

    def _block(self, path: str, n: Dim, index: int, given: Given, *, cross: bool) -> _Block:
        """Run a block, or remember how one like it ran."""
        spec, wires = self.spec, self.wires(path)
        last = spec.last_stack
        kind = (
            last.ffn_of(index),
            spec.has_rope_layer(index),
            spec.is_windowed_layer(index),
            spec.has_index_layer(index),
            index == 0 and not last.norms.first,
        )
        key = (cross, kind, given, frozenset(wires.trained))
        if key not in self._known:
            x, of_memory = follow_block(wires, spec, self.run, n, index, given, cross=cross)
            self._known[key] = _Block(wires=wires, flows=x, of_memory=of_memory)
        block = self._known[key]
        self.steps += block.wires.steps
        if self.run.checkpointing == NONE:
            self.kept += block.wires.kept
        elif block.wires.needs and self.run.checkpointing == SELECTIVE:
            self.kept += [
                Kept(role=step.role, name="result", values=step.result, width=1)
                for step in block.wires.steps
            ]
        else:
            self.again += block.wires.repeated()
        return block

    def _head(self, x: bool) -> None:
        """Run what follows the last norm, up to the loss."""
        spec, run, wires = self.spec, self.run, self.wires("")
        head, tables, gradients = spec.head, spec.embedding, set[str]()
        assert head is not None and tables is not None  # who asks has asked
        tokens = run.batch_size * run.seq_len
        if spec.pooler:  # the loss does not see it
            wires.linear("pooler.dense", False, run.batch_size, "", set())
        if head.transform is not None:
            x = wires.linear("head_transform.dense", x, tokens, "head_transform", gradients)
            if x:
                gradients.add("transform")
            x = wires.normed("head_transform.norm", "norm of the transform", x, gradients)
        matrix = "embed_tokens" if head.tied else HEAD
        wires.product(f"{matrix}.weight", x, tokens, HEAD, gradients, role="head")
        gradients.add("logits")  # whatever is trained
        wires.keep(head_terms(spec, run), gradients)
        self.ran(wires)


def _owner(path: str) -> tuple[str, str]:
    """Split a path into the block, stack or model ("") that the tensor belongs to, and the rest."""
    parts = path.split(".")
    if parts[1] == LAYERS:
        return ".".join(parts[:3]), ".".join(parts[3:])
    if parts[0] in ("encoder", "decoder"):
        return parts[0], ".".join(parts[1:])
    return "", path


def check_partly(spec: ModelSpec, run: Pass) -> None:
    """Raise `SpecError` for a structure whose step has no formula when a part of it is trained."""
    check_alike(spec, PARTLY, but=NOTHING_KEPT)
    indexed = spec.index_top_k is not None or spec.index_block_len is not None
    if indexed and run.checkpointing == SELECTIVE:
        rule = "has no formula for this model's mixer"
        raise SpecError("checkpointing", rule, SELECTIVE, "choose none or full, or measure it")
    check_covered(spec, run)
    positions = spec.positions
    if isinstance(positions, TransformerXL) or (
        isinstance(positions, Learned) and positions.n_query_positions
    ):
        raise SpecError("position", f"has no formula {PARTLY}", spec.position, "measure it instead")
    check_loss(spec)


def partly(spec: ModelSpec, run: Pass, tensors: Tensors) -> Partly:
    """Count what a step multiplies and keeps, all but a part of the model frozen.

    forward: as ever, and of each adapter 2·n·r·(in + out)
    backward: of each product 1 × for each factor that has a gradient
    kept: each tensor that a gradient needs

    Returns: FLOPs and bytes by role, exact for the reference modules.
    Source: `part.chosen_tensors`, `wires_block.follow_block`, `kept_ends`.
    """
    check_partly(spec, run)
    follower = _Follower(spec, run, tensors)
    follower.run_all()
    kept: dict[str, Dim] = dict.fromkeys(model.ROLES, 0)
    for term in follower.kept:
        add(kept, term.role, term.bytes)
    return Partly(
        matmul_flops=_summed(follower.steps, "flops"),
        backward_matmul_flops=_summed(follower.steps, "backward"),
        recompute_matmul_flops=_summed(follower.again, "flops"),
        activation_bytes=kept,
    )


def _summed(steps: Iterable[Step], what: str) -> dict[str, Dim]:
    found: dict[str, Dim] = dict.fromkeys(model.ROLES, 0)
    for step in steps:
        add(found, step.role, getattr(step, what))
    return found
