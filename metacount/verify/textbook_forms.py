"""The textbook's formulas with the letters that code is traced with: fields of a config or a spec.

Of transformers' code they are in the config's own fields: the mapping of a config to a spec is run
with numbers that remember where they are from. Of our reference modules they are in the spec's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.named_sizes import Named
from metacount.errors import SpecError
from metacount.frozen import frozen
from metacount.huggingface.config.to_spec import spec_from_config
from metacount.huggingface.module.model import chosen_class
from metacount.spec import DTYPE_BYTES, ModelSpec, Workload
from metacount.textbook.closed_form import QUANTITIES as TEXTBOOK
from metacount.textbook.count import fitted
from metacount.textbook.proof_record import SIZES
from metacount.textbook.training import TRAINING
from metacount.tracing.run.build import configs_of, layer_fields, size_values, with_fields
from metacount.tracing.run.sizes import symbol

if TYPE_CHECKING:
    from metacount.files import Json
    from metacount.formulas.dim import Dim

PROVEN = ("params", "active_params", "matmul_flops", "decode_matmul_flops", "kv_cache_bytes")
OF_OURS = "the formula is of our reference modules; other code keeps other tensors"
# Sizes of two stacks, of which a spec has one.
TOGETHER = {"decoder_ffn_dim": "encoder_ffn_dim"}
# A size that may be written down beside those that it is the sum of.
SUMS = {"qk_head_dim": ("qk_nope_head_dim", "qk_rope_head_dim")}
# A size that follows from others, where a config has all of them: (product, what divides it).
FOLLOWS: tuple[tuple[str, tuple[int | str, ...], str], ...] = (
    ("expand", ("intermediate_size",), "hidden_size"),
    ("expand", ("num_heads", "head_dim"), "hidden_size"),
    ("mamba_expand", ("mamba_n_heads", "mamba_d_head"), "hidden_size"),
    ("mamba_expand", ("n_mamba_heads", "mamba_headdim"), "hidden_size"),
    ("mamba_d_ssm", ("mamba_n_heads", "mamba_d_head"), ""),
    ("attention_hidden_size", (2, "hidden_size"), ""),
    ("attention_head_dim", (2, "hidden_size"), "num_attention_heads"),
)
OF_A_DECODER = frozenset(["decode_matmul_flops", "kv_cache_bytes"])


@frozen
class Textbook:
    """Every quantity by role in letters; `fields` has what each size of the spec is in letters.

    `put_right` has letters that the config's class or its mapping makes of others; `implied` those
    of them that no formula needs: the quotient of others. `uncovered` says of an asked quantity why
    it has no formula here.
    """

    spec: ModelSpec
    forms: dict[str, dict[str, sympy.Expr]]
    fields: dict[str, sympy.Expr]
    put_right: dict[sympy.Symbol, sympy.Expr]
    implied: dict[sympy.Symbol, sympy.Expr]
    of_config: bool = True
    uncovered: tuple[tuple[str, str], ...] = ()

    @property
    def numbers(self) -> dict[str, int]:
        """Sizes of the spec that are no letters: what is shown is of these numbers alone."""
        return {
            name: value
            for name, value in self.spec.to_dict().items()
            if name in SIZES and value and name not in self.fields
            if not (name == "moe_every" and value == 1)  # every layer: no pattern
        }

    @property
    def ours(self) -> dict[sympy.Symbol, sympy.Symbol]:
        """For a letter of the code's the same one of ours, where the spec has it; else `config_X`.

        A spec's field that is no letter alone is an equation: see `relations`.
        """
        found: dict[sympy.Symbol, sympy.Symbol] = {}
        for name, expr in self.fields.items():
            if expr.is_Symbol:
                found.setdefault(expr, symbol(name))
        every = set().union(*(e.free_symbols for e in self.fields.values()), self.put_right)
        return {**{s: symbol(f"config_{s.name}") for s in every}, **found}

    @property
    def relations(self) -> list[sympy.Rel]:
        """What all specs of such configs have in common: head_dim = d_model/n_heads, ..."""
        ours = self.ours
        equal = [
            *((symbol(name), expr) for name, expr in self.fields.items()),
            *(
                (x, y)
                for x, y in self.put_right.items()
                if not y.is_Integer and x not in self.implied  # else: a pattern, a quotient
            ),
        ]
        pairs = [(x.xreplace(ours), y.xreplace(ours)) for x, y in equal]
        return [sympy.Eq(x, y, evaluate=False) for x, y in pairs if x != y]


def textbook_of(
    model: Json | ModelSpec,
    letters: Iterable[str],
    workload: Workload,
    asked: tuple[str, ...] = (),
) -> Textbook:
    """Return the textbook's forms of a config, or of a spec in the fields named in `letters`.

    Those of a training step are had where they are `asked` for. Raises what the mapping raises for
    a config without a spec.
    """
    if isinstance(model, ModelSpec):
        in_letters = {name: symbol(name) for name in letters}
        of_step, uncovered = _of_a_step(model.substituted(**in_letters), model, workload, asked)
        return Textbook(
            spec=model,
            forms={**spec_forms(model, letters, workload), **of_step},
            fields=in_letters,
            put_right={},
            implied={},
            of_config=False,
            uncovered=uncovered,
        )
    spec, fields = _spec_in_letters(model)
    fitted(spec, workload)
    implied = _implied(model)
    fields = {name: expr.xreplace(implied) for name, expr in fields.items()}
    in_fields = spec.substituted(**fields)
    run = run_letters(spec, workload)
    names = _quantities(spec, PROVEN)
    if spec.attention == "mla":
        names.remove("decode_matmul_flops")  # transformers decodes in another form than we count
    of_step, uncovered = _of_a_step(in_fields, spec, workload, asked)
    return Textbook(
        spec=spec,
        forms={**{name: TEXTBOOK[name](in_fields, run) for name in names}, **of_step},
        fields=fields,
        put_right={**_put_right(model), **implied},
        uncovered=uncovered,
        implied=implied,
    )


def _of_a_step(
    in_letters: ModelSpec, spec: ModelSpec, workload: Workload, asked: tuple[str, ...]
) -> tuple[dict[str, dict[str, sympy.Expr]], tuple[tuple[str, str], ...]]:
    """Count the asked quantities of a training step in letters,
    and say why one of them has no formula.
    """
    forms: dict[str, dict[str, sympy.Expr]] = {}
    uncovered: list[tuple[str, str]] = []
    for name in asked:
        if name in TRAINING:
            try:
                forms[name] = TRAINING[name](in_letters, run_letters(spec, workload))
            except SpecError as error:
                uncovered.append((name, str(error)))
    return forms, tuple(uncovered)


def textbook_forms(
    config: Json, workload: Workload
) -> tuple[ModelSpec, dict[str, dict[str, sympy.Expr]]]:
    """Count every textbook quantity by role, in the fields of `config` and B, S, S_e."""
    found = textbook_of(config, (), workload)
    return found.spec, found.forms


def spec_forms(
    spec: ModelSpec, sizes: Iterable[str], workload: Workload
) -> dict[str, dict[str, sympy.Expr]]:
    """Count every textbook quantity by role,
    in the fields of `spec` named in `sizes` and B, S, S_e.
    """
    in_fields = spec.substituted(**{name: symbol(name) for name in sizes})
    run = run_letters(spec, workload)
    return {name: TEXTBOOK[name](in_fields, run) for name in _quantities(spec, TEXTBOOK)}


def _quantities(spec: ModelSpec, names: Iterable[str]) -> list[str]:
    return [name for name in names if spec.kind != "encoder" or name not in OF_A_DECODER]


def run_letters(spec: ModelSpec, workload: Workload) -> dict[str, Dim]:
    """Return the workload in letters; its prefix and its bytes per value stay numbers."""
    return {
        "batch_size": symbol("B"),
        "seq_len": symbol("S"),
        "kv_len": symbol("T"),
        "source_len": symbol("S_e") if spec.has_encoder else 0,
        "prefix_len": workload.prefix_len,
        "bytes_per_value": DTYPE_BYTES[workload.dtype],
    }


def _spec_in_letters(config: Json) -> tuple[ModelSpec, dict[str, sympy.Expr]]:
    """Return the spec of the whole config, defaults put in,
    and its sizes in the config's fields.
    """
    _, made, choice = chosen_class(config)
    values = {**size_values(config), **layer_fields(config, {})}
    whole = {**config, "architectures": [choice.class_name]}
    for owner, prefix in configs_of(made):
        if prefix:
            continue
        for name in vars(owner):
            if name in values:
                whole[name] = Named(values[name], symbol(name))
    spec = spec_from_config(whole).spec
    fields = {name: v.expr for name, v in spec.to_dict().items() if isinstance(v, Named)}
    return spec, fields


def _put_right(config: Json) -> dict[sympy.Symbol, sympy.Expr]:
    """Return the sizes that the mapping refuses to have other than another one, in that one.

    hidden_size as heads times their width, where no other width is taken: either the config's class
    sets the width itself, or the mapping refuses another. So for a pair of sizes that are equal.
    """
    values = size_values(config)
    found = {}
    width, heads, d = (values.get(n) for n in ("head_dim", "num_attention_heads", "hidden_size"))
    if width and heads and d == heads * width and not _free(config, {"head_dim": 2 * width}):
        found[symbol("hidden_size")] = symbol("num_attention_heads") * symbol("head_dim")
    for name, other in TOGETHER.items():
        value = values.get(name)
        if value and value == values.get(other) and not _free(config, {name: 2 * value}):
            found[symbol(name)] = symbol(other)
    for name, others in SUMS.items():
        value = values.get(name)
        adds_up = value and value == sum(values.get(n, 0) for n in others)
        if value and adds_up and not _free(config, {name: 2 * value}):
            found[symbol(name)] = sympy.Add(*map(symbol, others))
    return found


def _implied(config: Json) -> dict[sympy.Symbol, sympy.Expr]:
    """Return the sizes that others imply,
    where the mapping refuses to have another number for them.
    """
    values = size_values(config)
    found: dict[sympy.Symbol, sympy.Expr] = {}
    for name, factors, below in FOLLOWS:
        others = [f for f in factors if isinstance(f, str)]
        if not {name, *others, *([below] if below else [])} <= values.keys():
            continue
        if all(_free(config, {size: 2 * values[size]}) for size in (name, others[-1])):
            continue
        times = [symbol(f) if isinstance(f, str) else sympy.Integer(f) for f in factors]
        made = sympy.Mul(*times) / (symbol(below) if below else 1)
        if made.xreplace({symbol(n): sympy.Integer(v) for n, v in values.items()}) == values[name]:
            found[symbol(name)] = made
    return found


def _free(config: Json, change: dict[str, int]) -> bool:
    """Tell whether a config with other sizes has a spec, and still has them."""
    changed = with_fields(config, change)
    try:
        spec_from_config(changed)
    except SpecError:
        return False
    return change.items() <= size_values(changed).items()
