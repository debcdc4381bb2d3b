"""One workload under the conventions that people count FLOPs by, each with who uses it.

They leave different things out, count different passes, and take a masked product whole, halved or
exactly. Values are exact. The users stand in `conventions.tsv`, a row each: what they count, by
which formula, and where that is written: a file and line, or a section.
"""

from __future__ import annotations

from fractions import Fraction

from metacount.algebra.text import at, read
from metacount.errors import InputError
from metacount.formulas import model, sublayers
from metacount.formulas.dim import Dim
from metacount.formulas.tape import OF_PAIRS, Product, Weight, flops_of, params_of
from metacount.formulas.tape import by_role as terms_by_role
from metacount.frozen import frozen
from metacount.package import table_of_package

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec import ModelSpec, Workload


@frozen
class Source:
    """One user of a convention: who, where it is written, and whether it was read there.

    >>> Source(who="them", where="paper, sec. 1", read=False).sentence()
    'them (paper, sec. 1; not looked up)'
    """

    who: str
    where: str
    read: bool = True

    def sentence(self) -> str:
        """Write the user and the place in one line."""
        if not self.where:
            return f"{self.who} (no source)"
        return f"{self.who} ({self.where}{'' if self.read else '; not looked up'})"


PASSES = {
    "forward": "forward",
    "training": "training (forward and backward)",
    "recomputed": "training, with recomputation",
}


@frozen
class Row:
    """How one user counts: for which passes, in words, as a formula, and whether under a mask."""

    passes: str
    says: str
    formula: str
    needs_mask: bool
    source: Source


def _read_rows() -> dict[str, Row]:
    rows = {}
    for user, columns in table_of_package("textbook/conventions.tsv").items():
        passes, says, formula, needs, who, where, read = (*columns, "", "")[:7]
        rows[user] = Row(
            passes=PASSES[passes],
            says=says,
            formula=formula,
            needs_mask=bool(needs),
            source=Source(who=who, where=where, read=not read),
        )
    return rows


# By user, in the order in which they are printed. What {titan} leaves out depends on the model:
# torchtitan leaves a tied table in, as the head multiplies with it.
ROWS = _read_rows()
TITAN = {True: "6·P", False: "6·(P - E)"}  # by whether the head is tied
FORMULAS = {row.formula.format(titan=TITAN[tied]) for row in ROWS.values() for tied in TITAN}
WHOLE_HEADS = ("torchtitan_llama", "nanogpt")  # they take d // h


def megatron(spec: ModelSpec) -> Source:
    """Cite Megatron-LM, with what its own formula does otherwise with such a model."""
    source = ROWS["megatron"].source
    sentence = source.who
    if spec.gated and spec.activation != "silu":
        sentence += ", which counts two matrices where a gate is not SwiGLU (here three)"
    if spec.attention == "mla":
        sentence += ", which adds 2 FLOPs for each weight of a latent norm (not here)"
    return Source(who=sentence, where=source.where)


@frozen
class Amounts:
    """What the conventions are made of, for one workload.

    `params`, `stored`, `looked_up`, `token_table` and `positions` are parameters; all else are
    FLOPs of one forward over the workload: products with weights, the head's, the blocks' and the
    routers' among them, and products between positions - all pairs, the same if the heads
    together were as wide as the model, and exactly those that the mask keeps.
    """

    tokens: Dim
    params: Dim
    stored: Dim
    looked_up: Dim
    token_table: Dim
    positions: Dim
    weights: Dim
    head: Dim
    blocks: Dim
    routers: Dim
    pairs: Dim
    square_pairs: Dim
    kept_pairs: Dim
    causal: bool

    def letters(self) -> dict[str, Dim]:
        """Return the amounts of the whole workload under the letters of the formulas."""
        n = self.tokens
        return {
            "P": n * self.params,
            "Q": n * self.stored,
            "E": n * self.looked_up,
            "T": n * self.token_table,
            "L": n * self.positions,
            "W": self.weights,
            "H": self.head,
            "B": self.blocks,
            "R": self.routers,
            "A": self.pairs,
            "D": self.square_pairs,
            "C": self.kept_pairs,
        }


# Tables with a row a position: embeddings, PanGu's queries; what scores experts: routers, gates.
OF_POSITIONS = ("embed_positions.", "embed_queries.")
OF_SCORES = (".gate.proj.weight", ".shared_expert_gate.weight")
# a letter that stands for the same amount as another one is written as the other
SAME = (("Q", "P"), ("T", "E"), ("D", "A"))


@frozen
class Convention:
    """One way to count: in words, as a formula of the amounts' letters, with its value and users.

    `value` is of the whole workload, in FLOPs, or in multiply-adds where `unit` says MAC.
    """

    passes: str
    says: str
    formula: str
    value: int
    unit: str
    sources: tuple[Source, ...]

    @property
    def users(self) -> str:
        """Everybody who counts so, and where it is written."""
        return "; ".join(source.sentence() for source in self.sources)

    def per_token(self, tokens: int) -> Fraction:
        """Return the value of one token, exact."""
        return Fraction(self.value, tokens)


def amounts(spec: ModelSpec, workload: Workload) -> Amounts:
    """Compute the amounts of a workload; an `InputError` for two stacks or a state."""
    if spec.has_encoder:
        raise InputError(
            "--conventions are of a model with one stack: an encoder-decoder has "
            "tokens of two kinds, and 6·N of neither; leave it out"
        )
    if spec.recurrent != "none":
        raise InputError(
            "--conventions are of a model with attention in every layer: none of them counts a "
            f"mixer that keeps a state ({spec.recurrent}); leave it out"
        )
    return amounts_at(spec, workload.batch_size, workload.seq_len, workload.prefix_len)


def amounts_at(spec: ModelSpec, batch_size: Dim, seq_len: Dim, prefix_len: Dim = 0) -> Amounts:
    """Compute the amounts of a model of one stack, with letters too for sizes and for the run."""
    full = model.matmul_flops(spec, batch_size=batch_size, seq_len=seq_len)
    causal = model.causal_matmul_flops(
        spec, batch_size=batch_size, seq_len=seq_len, prefix_len=prefix_len
    )
    n_tokens = batch_size * seq_len
    run = model.forward_run(spec, batch_size=batch_size, seq_len=seq_len)
    terms: tuple[Weight | Product, ...] = (*model.weights(spec), *model.products(spec))
    # without the products between positions, those with weights are left
    by_role = terms_by_role(
        (term for term in terms if not (isinstance(term, Product) and term.per in OF_PAIRS)),
        lambda term: term.flops(run),
        model.ROLES,
    )
    weights = sum(by_role.values())
    around = sum(sublayers.end_flops(spec, run).values())
    token_table = sublayers.token_table_params(spec)
    positions = params_of(w for w in model.weights(spec) if w.name.startswith(OF_POSITIONS))
    scoring = [weight for weight in model.weights(spec) if weight.name.endswith(OF_SCORES)]
    return Amounts(
        tokens=n_tokens,
        params=sum(model.active_params_by_role(spec).values()),
        stored=model.params(spec),
        looked_up=model.looked_up_params(spec) + positions,
        token_table=token_table,
        positions=positions,
        weights=weights,
        head=by_role["head"],
        blocks=weights - around,
        routers=flops_of(scoring, run),
        pairs=full - weights,
        # 2 FLOPs, scores and values, d columns for each of S positions in every block
        square_pairs=4 * n_tokens * seq_len * spec.n_layers * spec.d_model,
        kept_pairs=causal - weights,
        causal=spec.kind != "encoder",
    )


def conventions(spec: ModelSpec, workload: Workload) -> tuple[Convention, ...]:
    """List the conventions that have a meaning for the model: an encoder has no causal mask.

    Conventions that come to the same amounts with this model stand in one row.

    >>> from metacount.catalog import entry
    >>> from metacount.spec import Workload
    >>> llama = conventions(entry("llama3-8b").spec(), Workload(seq_len=8192))
    >>> [int(c.per_token(8192)) for c in llama if c.formula in ("3·B", "8·P + 4·A")]
    [41875931136, 81421959168]
    """
    a = amounts(spec, workload)
    by_name: dict[tuple[str, str], Convention] = {}
    whole_heads = spec.d_model % spec.n_heads == 0
    tied = bool(spec.tie_embeddings)
    for user, row in ROWS.items():
        if (row.needs_mask and not a.causal) or (user in WHOLE_HEADS and not whole_heads):
            continue
        formula = row.formula.format(titan=TITAN[tied])
        says = row.says.format(tables="6 per parameter" if tied else "tables left out")
        written = _written(formula, a)
        known = by_name.get((row.passes, written))
        source = megatron(spec) if user == "megatron" else row.source
        by_name[row.passes, written] = Convention(
            passes=row.passes,
            says=known.says if known else says,
            formula=written,
            value=_value(formula, a),
            unit="MAC" if says.startswith("multiply-adds") else "FLOP",
            sources=(*(known.sources if known else ()), source),
        )
    return tuple(by_name.values())


def _value(formula: str, a: Amounts) -> int:
    exact = at(read(formula).tree, a.letters())
    if exact.denominator != 1:
        raise AssertionError(f"{exact} is no whole number of FLOPs")
    return int(exact)


def _written(formula: str, a: Amounts) -> str:
    """Write the formula in as few letters as this model needs."""
    amount = a.letters()
    for letter, other in SAME:
        if amount[letter] == amount[other]:
            formula = formula.replace(letter, other)
    for letter in "LR":
        if not amount[letter]:
            formula = formula.replace(f" - {letter}", "")
    return formula.replace("(P)", "P").replace("(Q)", "Q")
