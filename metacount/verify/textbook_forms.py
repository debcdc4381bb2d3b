"""The textbook's formulas with the letters that code is traced with: fields of a config or a spec.

Of transformers' code they are in the config's own fields: the mapping of a config to a spec is run
with numbers that remember where they are from. Of our reference modules they are in the spec's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.exact import Named
from metacount.errors import SpecError
from metacount.frozen import frozen
from metacount.huggingface.config.to_spec import spec_from_config
from metacount.huggingface.module.model import chosen_class, config_class
from metacount.spec import DTYPE_BYTES, ModelSpec, Workload
from metacount.textbook.count import QUANTITIES as TEXTBOOK
from metacount.textbook.count import fitted
from metacount.textbook.proven import SIZES
from metacount.tracing.sources import (
    configs_of,
    layer_fields,
    size_values,
    whole_fields,
    with_fields,
)
from metacount.tracing.symbols import symbol

if TYPE_CHECKING:
    from metacount.files import Json
    from metacount.formulas.dim import Dim

PROVEN = ("params", "active_params", "matmul_flops", "decode_matmul_flops", "kv_cache_bytes")
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
    of them that no formula needs: the quotient of others. `config` is None for a spec.
    """

    spec: ModelSpec
    forms: dict[str, dict[str, sympy.Expr]]
    fields: dict[str, sympy.Expr]
    put_right: dict[sympy.Symbol, sympy.Expr]
    implied: dict[sympy.Symbol, sympy.Expr]
    config: Json | None = None

    @property
    def numbers(self) -> dict[str, int]:
        """Sizes of the spec that are no letters: what is shown is of these numbers alone."""
        return {n: v for n, v in sizes_of(self.spec).items() if n not in self.fields}

    def total(self, quantity: str) -> sympy.Expr:
        """Sum the roles of a quantity."""
        return sympy.Add(*map(sympy.sympify, self.forms[quantity].values()))

    def words(self, letters: Iterable[sympy.Symbol] = ()) -> dict[sympy.Symbol, sympy.Expr]:
        """Return what letters of the code are in the spec's words; what no spec has is `config_X`.

        A size that the mapping takes a whole number of times, plus a number, is found back from the
        spec's: positions less 2, twice a width.
        """
        words: dict[sympy.Symbol, sympy.Expr] = {}
        for name, expr in self.fields.items():
            if expr.is_Symbol:
                words.setdefault(expr, symbol(name))
        for name, expr in self.fields.items():
            extra, rest = expr.as_coeff_Add()
            times, letter = rest.as_coeff_Mul()
            if letter.is_Symbol and letter not in words:
                words[letter] = (symbol(name) - extra) / times
        for letter, made in self.put_right.items():
            if letter not in words and made.free_symbols and made.free_symbols <= words.keys():
                words[letter] = made.xreplace(words)
        of_run = {symbol(name) for name in ("B", "S", "T", "S_e")}
        rest = {*letters, *(s for e in self.fields.values() for s in e.free_symbols)}
        rest = {*rest, *self.put_right} - words.keys() - of_run
        return {**{s: symbol(f"config_{s.name}") for s in rest if self.config}, **words}

    @property
    def relations(self) -> list[sympy.Rel]:
        """What all specs of such configs have in common: head_dim = d_model/n_heads, ..."""
        words = self.words()
        equal = [
            *((symbol(name), expr.xreplace(words)) for name, expr in self.fields.items()),
            *(
                (x.xreplace(words), y.xreplace(words))
                for x, y in self.put_right.items()
                if not y.is_Integer and x not in self.implied  # else: a pattern, a quotient
            ),
        ]
        return [sympy.Eq(x, y, evaluate=False) for x, y in equal if x != y]

    def defaults_of(
        self, letters: Iterable[sympy.Symbol]
    ) -> tuple[tuple[str, sympy.Expr, tuple[str, ...]], ...]:
        """Return for fields that a config alone has what its class makes of one that is not given,
        in the spec's words, and the names under which it may be given.

        One that follows from another one stands after it; one that cannot be told is left out.
        """
        defaults: dict[str, tuple[str, sympy.Expr, tuple[str, ...]]] = {}
        for letter in sorted(letters, key=str):
            name = letter.name.removeprefix("config_")
            if self.config is None or name == letter.name:
                continue
            without = {key: given for key, given in self.config.items() if key != name}
            part = name.partition(".")[0]
            made = None if part in without else _followed(without, name)
            if made is not None:
                other = config_class(self.config["model_type"]).attribute_map
                names = (name, *(alias for alias, known in other.items() if known == name))
                made = made.xreplace(self.words(made.free_symbols))
                defaults |= {each[0]: each for each in self.defaults_of(made.free_symbols)}
                defaults[letter.name] = letter.name, made, names
        return tuple(defaults.values())


def textbook_of(model: Json | ModelSpec, letters: Iterable[str], workload: Workload) -> Textbook:
    """Return the textbook's forms of a config, or of a spec in the fields named in `letters`.

    Raises what the mapping raises for a config without a spec.
    """
    if isinstance(model, ModelSpec):
        in_letters = {name: symbol(name) for name in letters}
        return Textbook(
            spec=model,
            forms=spec_forms(model, letters, workload),
            fields=in_letters,
            put_right={},
            implied={},
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
    return Textbook(
        spec=spec,
        forms={name: TEXTBOOK[name](in_fields, run) for name in names},
        fields=fields,
        put_right={**_put_right(model, fields), **implied},
        implied=implied,
        config=model,
    )


def textbook_forms(
    config: Json, workload: Workload
) -> tuple[ModelSpec, dict[str, dict[str, sympy.Expr]]]:
    """Count every textbook quantity by role, in the fields of `config` and B, S, S_e."""
    forms = textbook_of(config, (), workload)
    return forms.spec, forms.forms


def spec_forms(
    spec: ModelSpec,
    sizes: Iterable[str],
    workload: Workload,
    *,
    run: dict[str, Dim] | None = None,
) -> dict[str, dict[str, sympy.Expr]]:
    """Count every textbook quantity by role,
    in the fields of `spec` named in `sizes` and B, S, S_e; `run` may have more of them in letters.
    """
    in_fields = spec.substituted(**{name: symbol(name) for name in sizes})
    letters = {**run_letters(spec, workload), **(run or {})}
    return {name: TEXTBOOK[name](in_fields, letters) for name in _quantities(spec, TEXTBOOK)}


def sizes_of(spec: ModelSpec) -> dict[str, int]:
    """Return the sizes that a spec has; a step of 1 is none: every layer is of one kind."""
    return {
        name: value
        for name, value in spec.to_dict().items()
        if name in SIZES and value and not (name == "moe_every" and value == 1)
    }


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
    """Return the spec of the whole config, its sizes in the config's fields."""
    _, made, choice = chosen_class(config)
    values = {**size_values(config), **layer_fields(config, {})}
    full = {**config, "architectures": [choice.class_name]}
    for owner, prefix in configs_of(made):
        if prefix:
            continue
        for name in vars(owner):
            if name in values:
                full[name] = Named(values[name], symbol(name))
    spec = spec_from_config(full).spec
    fields = {name: v.expr for name, v in spec.to_dict().items() if isinstance(v, Named)}
    return spec, fields


def _put_right(config: Json, fields: dict[str, sympy.Expr]) -> dict[sympy.Symbol, sympy.Expr]:
    """Return the sizes that the mapping refuses to have other than another one, in that one.

    hidden_size as heads times their width, where no other width is taken: either the config's class
    sets the width itself, or the mapping refuses another. So for a size that no field of the spec
    has: a sum or a product that the class makes of others, or one of a pair that must be equal.
    """
    values = size_values(config)
    letters = {}
    width, heads, d = (values.get(n) for n in ("head_dim", "num_attention_heads", "hidden_size"))
    if width and heads and d == heads * width and not _free(config, {"head_dim": 2 * width}):
        letters[symbol("hidden_size")] = symbol("num_attention_heads") * symbol("head_dim")
    in_spec = set().union(*(expr.free_symbols for expr in fields.values()))
    for name, value in values.items():
        if symbol(name) in in_spec or _free(config, {name: 2 * value}):
            continue
        made = _followed(config, name)
        if made is not None and made.free_symbols:
            letters[symbol(name)] = made
        for other in values if made is None or not made.free_symbols else ():
            both = {name: 2 * value, other: 2 * value}
            if values[other] == value and symbol(other) in in_spec and _free(config, both):
                letters[symbol(name)] = symbol(other)
                break
    return letters


def _followed(config: Json, name: str) -> sympy.Expr | None:
    """Return what a config's class makes a field of, where the config does not give it: its number
    where it follows from none, None where this cannot be told.

    Each size is doubled for itself, and again: what follows from it is doubled or halved each time
    (a factor), or grows by the same for the same (a term).
    """
    sizes, values = _sizes_to_double(config), whole_fields(config)
    if name not in values:
        return None
    own = values[name]
    factors, terms = [], []
    for other, (size, twice, four_times) in sizes.items():
        if name not in twice or name not in four_times:
            return None
        seen = [twice[name], four_times[name]]
        if other == name or seen == [own, own]:
            continue
        factors += [symbol(other)] if seen == [2 * own, 4 * own] else []
        factors += [1 / symbol(other)] if [2 * seen[0], 4 * seen[1]] == [own, own] else []
        slope = sympy.Rational(seen[0] - own, size)
        terms.append(slope * symbol(other) if seen[1] - own == 3 * size * slope else None)
    at = {symbol(other): sympy.Integer(size) for other, (size, *_) in sizes.items()}
    refused = {*size_values(config), *layer_fields(config, {})} - {*sizes, name}
    if refused and (terms or own != getattr(config_class(config["model_type"]), name, None)):
        return None  # of what could not be doubled it may follow, too
    if len(factors) == len(terms):
        product = sympy.Mul(*factors)
        return product * own / product.xreplace(at)
    if None in terms:
        return None
    total = sympy.Add(*terms)
    return total + own - total.xreplace(at)


def _sizes_to_double(config: Json) -> dict[str, tuple[int, dict[str, int], dict[str, int]]]:
    """Return each size of a config, and all of its numbers with that one doubled, and again."""
    key = json.dumps(config, sort_keys=True)
    if key not in _doubled:
        _doubled.clear()  # one config after the other is asked for
        doubled = _doubled[key] = {}
        for name, size in {**size_values(config), **layer_fields(config, {})}.items():
            try:
                twice, four_times = (
                    whole_fields(with_fields(config, {name: times * size})) for times in (2, 4)
                )
            except SpecError:
                continue
            doubled[name] = size, twice, four_times
    return _doubled[key]


_doubled: dict[str, dict[str, tuple[int, dict[str, int], dict[str, int]]]] = {}


def _implied(config: Json) -> dict[sympy.Symbol, sympy.Expr]:
    """Return the sizes that others imply, of which the mapping refuses other numbers."""
    values = size_values(config)
    implied: dict[sympy.Symbol, sympy.Expr] = {}
    for name, factors, below in FOLLOWS:
        others = [f for f in factors if isinstance(f, str)]
        if not {name, *others, *([below] if below else [])} <= values.keys():
            continue
        if all(_free(config, {size: 2 * values[size]}) for size in (name, others[-1])):
            continue
        times = [symbol(f) if isinstance(f, str) else sympy.Integer(f) for f in factors]
        made = sympy.Mul(*times) / (symbol(below) if below else 1)
        if made.xreplace({symbol(n): sympy.Integer(v) for n, v in values.items()}) == values[name]:
            implied[symbol(name)] = made
    return implied


def _free(config: Json, change: dict[str, int]) -> bool:
    """Tell whether a config with other sizes has a spec, and still has them."""
    changed = with_fields(config, change)
    try:
        spec_from_config(changed)
    except SpecError:
        return False
    return change.items() <= size_values(changed).items()
