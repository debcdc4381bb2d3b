"""The forward of a model in order, as the formulas run it: shapes, FLOPs and bytes in letters.

>>> from metacount.catalog import entry
>>> from metacount.spec import Workload
>>> parts = forward_table(entry("llama-7b").spec(), Workload()).parts
>>> [(part.name, part.times) for part in parts]
[('before the blocks', 1), ('layers 0-31', 32), ('after the blocks', 1)]
>>> step = next(step for step in parts[1].steps if step.name == "self_attn.q_proj")
>>> step.weight, step.result, step.flops, step.flops_value
('[h·h_d, d]', '[B·S, h·h_d]', '2·B·S·d·h·h_d', 68719476736)
"""

from __future__ import annotations

from metacount.algebra.text import in_letters
from metacount.formulas.block import STORED
from metacount.formulas.dim import Dim, is_zero
from metacount.formulas.pieces import Piece, walk
from metacount.formulas.tape import EAGER, Op, Pass, Store, Tape, Weight
from metacount.frozen import frozen
from metacount.package import table_of_package
from metacount.spec import DTYPE_BYTES, ModelSpec, Workload, legend
from metacount.textbook.rows import in_symbols
from metacount.units import ranges

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.files import Json

# What an operation computes, by its name; that of a matrix is a product with its weight.
EQUATIONS = {name: text for name, (text,) in table_of_package("textbook/operations.tsv").items()}
CASTS = {2: "to 16 bits", 4: "to float32", 8: "to float64"}


@frozen
class ForwardStep:
    """One operation: its weight and its result, [rows, columns] in letters, and what it costs.

    `saved` are the bytes that its backward needs and nothing before it did, where all is trained.
    """

    name: str
    equation: str
    weight: str
    result: str
    flops: str
    flops_value: int
    saved: str
    saved_value: int


@frozen
class ForwardPart:
    """Some steps of a forward: of what stands before the blocks, of blocks that are alike, ..."""

    name: str
    times: int
    steps: tuple[ForwardStep, ...]


@frozen
class ForwardTable:
    """The forward of a model by formula; `numbers` are those of its letters."""

    workload: Workload
    attention: str
    parts: tuple[ForwardPart, ...]
    numbers: dict[str, int]

    @property
    def matmul_flops(self) -> int:
        """FLOPs of the whole forward."""
        return sum(part.times * step.flops_value for part in self.parts for step in part.steps)

    def to_dict(self) -> Json:
        """Convert the table to plain data."""
        return {
            "workload": self.workload.to_dict(),
            "attention": self.attention,
            "matmul_flops": self.matmul_flops,
            "letters": self.numbers,
            "parts": [
                {
                    "part": part.name,
                    "times": part.times,
                    "steps": [vars(step) for step in part.steps],
                }
                for part in self.parts
            ],
            "source": "formula",
        }


def forward_table(spec: ModelSpec, workload: Workload, *, attention: str = EAGER) -> ForwardTable:
    """Run the forward of `spec` in letters; attention is `eager`, `flash` or `sdpa`."""
    letters, numbers = in_symbols(spec)
    run = {
        "batch_size": workload.batch_size,
        "seq_len": workload.seq_len,
        "source_len": workload.encoder_len if spec.has_encoder else 0,
    }
    symbols = legend.sympy_symbols(run)
    numbers |= {symbols[name].name: size for name, size in run.items() if size}
    sizes = Pass(
        batch_size=symbols["batch_size"],
        seq_len=symbols["seq_len"],
        source_len=symbols["source_len"],
        bytes_per_value=DTYPE_BYTES[workload.dtype],
        attention=attention,
    )
    alike: dict[Tape, list[Piece]] = {}
    for piece in walk(letters, sizes, structure=spec):
        alike.setdefault(piece.tape, []).append(piece)
    parts = []
    for tape, pieces in alike.items():
        lead = f"{'encoder' if pieces[0].of_encoder else 'decoder'}: " if spec.has_encoder else ""
        indices = [piece.index for piece in pieces if piece.index is not None]
        place = f"layers {ranges(indices)}" if indices else f"{pieces[0].place} the blocks"
        if tape.ops:
            steps = _steps(tape, numbers)
            parts.append(ForwardPart(name=f"{lead}{place}", times=len(pieces), steps=steps))
    return ForwardTable(workload=workload, attention=attention, parts=tuple(parts), numbers=numbers)


def _steps(tape: Tape, numbers: dict[str, int]) -> tuple[ForwardStep, ...]:
    """Write the operations of a tape, each with what it saves and none before it did."""
    weights = {declared.name.removesuffix(".weight"): declared for declared in tape.weights}
    known: set[Store] = set()
    steps = []
    for op in tape.ops:
        fresh = [store for store in dict.fromkeys(op.saves) if store not in known]
        known |= set(fresh)
        flops, saved, weight = op.flops, sum(store.bytes for store in fresh), weights.get(op.name)
        step = ForwardStep(
            name=op.name.removeprefix(STORED),
            equation=_equation(op, weight),
            weight=_shape(weight.shape) if weight is not None else "",
            result=_shape((op.out.rows, op.out.columns)),
            flops="" if is_zero(flops) else _written(flops),
            flops_value=_value(flops, numbers),
            saved="" if is_zero(saved) else _written(saved),
            saved_value=_value(saved, numbers),
        )
        steps.append(step)
    return tuple(steps)


def _value(amount: Dim, numbers: dict[str, int]) -> int:
    if isinstance(amount, int):
        return amount
    return int(amount.subs({letter: numbers[letter.name] for letter in amount.free_symbols}))


def _equation(op: Op, weight: Weight | None) -> str:
    if weight is not None:
        return "x·Wᵀ" if weight.rows else "W[index]"
    return CASTS[op.out.width] if op.name == "cast" else EQUATIONS.get(op.name, "")


def _shape(sizes: Sequence[Dim]) -> str:
    return "[" + ", ".join(_written(size) for size in sizes) + "]"


def _written(amount: Dim) -> str:
    import sympy

    return in_letters(sympy.factor_terms(sympy.sympify(amount)))
