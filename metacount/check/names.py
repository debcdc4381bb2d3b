"""What a name in somebody's formula stands for: a size of the model at hand, as its letter.

A formula may use our names, our letters, or anybody's spelling that the legend knows. A function
that asks a config for `attention_bias` must get the model's answer, not its own default.
"""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.exact import Named
from metacount.errors import InputError, SpecError, nearest, shown
from metacount.huggingface.config.record import family_of, mapped_types
from metacount.spec import DTYPE_BYTES, ModelSpec, Workload, legend
from metacount.spec.legend import SWITCHES
from metacount.textbook.closed_form import BYTES, LAYERS, closed_form, layers_of, named_layers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from metacount.files import Json


class Choice(str):
    """A choice that is false where it is none, as a switch of the same name elsewhere is."""

    __slots__ = ()

    def __bool__(self) -> bool:
        """Tell whether the choice is any: neither empty nor "none"."""
        return self not in ("", "none")


def _biased(spec: ModelSpec) -> bool:
    return bool(spec.q_bias or spec.mla_bias)


# Names that configs give to structural choices; our own fields stand in the legend.
_CHOICES: dict[str, Callable[[ModelSpec], object]] = {
    "attention_bias attn_bias use_attention_bias attn_qkv_bias": _biased,
    "attention_out_bias attention_output_bias out_bias o_proj_bias": lambda spec: (
        spec.o_bias or spec.mla_bias
    ),
    "use_bias bias add_bias_linear": lambda spec: _biased(spec) or spec.ffn_bias,
    "use_qk_norm qk_norm qk_layernorm use_query_key_norm": lambda spec: (
        spec.qk_norm not in ("none", "l2")
    ),
    "use_rmsnorm rmsnorm rms_norm": lambda spec: spec.norm == "rmsnorm",
    "alibi use_alibi": lambda spec: spec.position == "alibi",
    "use_rope rotary use_rotary": lambda spec: spec.position == "rope",
    "parallel_attn use_parallel_residual parallel_residual": lambda spec: (
        spec.norm_placement in ("parallel", "parallel_two")
    ),
    "is_encoder_decoder has_encoder": attrgetter("has_encoder"),
    "is_moe use_moe": attrgetter("is_moe"),
    "use_mla is_mla multi_latent_attention": lambda spec: spec.attention == "mla",
    "use_sliding_window has_sliding_window": lambda spec: spec.window is not None,
}
STRUCTURE: dict[str, Callable[[ModelSpec], object]] = {
    **{word: attrgetter(field) for field, words in SWITCHES.items() for word in words},
    **{word: choice for words, choice in _CHOICES.items() for word in words.split()},
}


def structure_of(spec: ModelSpec, name: str) -> tuple[object] | None:
    """Look up a structural choice by our name or another one; None for an unknown name."""
    if name in STRUCTURE:
        return (STRUCTURE[name](spec),)
    values = spec.to_dict()
    if name in values:
        value = values[name]
        return (Choice(value) if isinstance(value, str) else value,)
    return None


class ConfigKeys:
    """A config with its type's defaults, and what each of its numbers is in the spec.

    What a key means is what the mapping of its model type does with it. `fields` has the fields
    that a key becomes as it is, `made` what follows for a key from a field that is made of it.

    >>> ConfigKeys({"model_type": "deepseek_v3"}).fields["intermediate_size"]
    ('d_ff',)
    >>> ConfigKeys({"model_type": "gpt_oss"}).fields["intermediate_size"]
    ('d_ff_expert',)
    >>> ConfigKeys({"model_type": "opt"}).made["max_position_embeddings"]
    n_positions - 2
    """

    def __init__(self, config: Json) -> None:
        self.whole: Json = dict(config)
        self.fields: dict[str, tuple[str, ...]] = {}
        self.made: dict[str, sympy.Expr] = {}
        model_type = config.get("model_type")
        family = family_of(model_type) if isinstance(model_type, str) else None
        if family is None:
            return
        given = {family.aliases.get(key, key): value for key, value in config.items()}
        self.whole = {**family.defaults, **given}
        spec = _spec(self.whole) or _spec(given)  # some defaults may not be written down
        if spec is not None:
            self._read(spec)
        for alias, key in family.aliases.items():
            for known in (self.whole, self.fields, self.made):
                if key in known:
                    known[alias] = known[key]

    def _read(self, spec: ModelSpec) -> None:
        marked = {n: v.expr for n, v in spec.to_dict().items() if isinstance(v, Named)}
        for name, expr in marked.items():
            if expr.is_Symbol:
                self.fields[expr.name] = (*self.fields.get(expr.name, ()), name)
        ours = {sympy.Symbol(key): sympy.Symbol(names[0]) for key, names in self.fields.items()}
        for name, expr in marked.items():
            unknown = expr.free_symbols - ours.keys()
            if len(unknown) == 1 and not expr.has(sympy.floor):
                (key,) = unknown
                slope = sympy.diff(expr, key)
                if key not in slope.free_symbols:
                    solved = (sympy.Symbol(name) - expr.subs(key, 0)) / slope
                    self.made.setdefault(key.name, sympy.expand(solved.subs(ours)))


@cache
def _classes() -> dict[str, dict[str, tuple[str, ...]]]:
    return {name: ConfigKeys({"model_type": name}).fields for name in mapped_types()}


def meant_in_classes(key: str, sizes: frozenset[str]) -> tuple[str, str] | None:
    """Return which of `sizes`, those of a model, a config's key is, and a type that has it so.

    Asked are the types that read the key and most of these sizes; None where they do not agree.

    >>> meant_in_classes("intermediate_size", frozenset(["d_ff", "d_ff_expert", "n_groups"]))
    ('d_ff', 'deepseek_v3')
    """
    readers = {name: fields for name, fields in _classes().items() if key in fields}
    missing = {name: len(sizes.difference(*fields.values())) for name, fields in readers.items()}
    nearest = [name for name, n in missing.items() if n == min(missing.values())]
    meanings = {readers[name][key] for name in nearest}
    fields = meanings.pop() if len(meanings) == 1 else ()
    if len(fields) != 1 or fields[0] not in sizes:
        return None

    def besides(name: str) -> int:
        return len({field for ours in readers[name].values() for field in ours} - sizes)

    return fields[0], min(nearest, key=lambda name: (besides(name), len(readers[name])))


def _spec(config: Json) -> ModelSpec | None:
    from metacount.huggingface.config.to_spec import spec_from_config

    marked = {
        key: Named(value, sympy.Symbol(key)) if type(value) is int else value
        for key, value in config.items()
    }
    try:
        return spec_from_config(marked).spec
    except SpecError:
        return None


LETTERS = {t.name: legend.sympy_symbols([t.name])[t.name] for t in legend.TERMS}
BYTES_LETTER = sympy.Symbol(BYTES.letter, integer=True, positive=True)
NAMES = {
    **{t.letter: t.name for t in legend.TERMS},
    BYTES.letter: BYTES.name,
    **{t.letter: t.name for t in LAYERS},
}
# Names of sizes that the legend does not hold.
ALSO = {
    "bytes_per_value": BYTES.name,
    "bytes_per_element": BYTES.name,
    "bytes_per_param": BYTES.name,
    "dtype_bytes": BYTES.name,
    "n_bytes": BYTES.name,
    "attention_window_size": "window",
    "chunk_size": "ssm_chunk_size",
    **{t.name: t.name for t in LAYERS},
}
# Letters of papers on scaling that are none of ours.
# With D, the tokens of a run, N and P are the parameters of the model.
FIELD = ("L", "D")
PARAMS = ("N", "P")
# Letters of Megatron's papers, where one of l, a and s stands that is no size of the model.
MEGATRON = {
    **{"l": "n_layers", "L": "n_layers", "h": "d_model", "a": "n_heads"},
    **{"s": "seq_len", "b": "batch_size", "v": "vocab_size", "V": "vocab_size"},
}
# Sizes that another one stands for where the model leaves them out.
STANDS_FOR = {"d_ff_shared": "d_ff_expert", "d_embedding": "d_model", "rotary_dim": "head_dim"}
# Sizes that a model has where it has not the other.
RELATED = {
    "d_ff": "d_ff_expert",
    "d_ff_expert": "d_ff",
    "head_dim": "v_head_dim",
    "n_kv_heads": "kv_lora_rank",
}


def numbers_of(spec: ModelSpec, workload: Workload) -> dict[sympy.Expr, int]:
    """Return the number behind each letter that `spec` and `workload` have."""
    sizes = {t.name: getattr(spec, t.name) for t in legend.MODEL_TERMS}
    run = {
        "batch_size": workload.batch_size,
        "seq_len": workload.seq_len,
        "kv_len": workload.seq_len,
        "source_len": workload.encoder_len if spec.has_encoder else 0,
        "prefix_len": workload.prefix_len,
    }
    numbers = {LETTERS[name]: size for name, size in {**sizes, **run}.items() if size}
    return {**numbers, BYTES_LETTER: DTYPE_BYTES[workload.dtype]}


class Vocabulary:
    """The names that a formula about one model may use, and what they stand for."""

    def __init__(
        self,
        spec: ModelSpec,
        workload: Workload,
        quantity: str,
        *,
        name: str,
        config: Json | None = None,
    ) -> None:
        self.spec, self.workload, self.model = spec, workload, name
        self.keys = ConfigKeys(config or {})
        self.config, self.fields = self.keys.whole, self.keys.fields
        self.notes: list[str] = []
        self.numbers = numbers_of(spec, workload)
        if spec.moe_every == 1:  # structure: every layer may be MoE
            self.numbers.pop(LETTERS["moe_every"])
        self.quantity = quantity

    def meanings(self, names: Iterable[str]) -> dict[str, sympy.Expr]:
        """Find a letter, an expression of letters or a number for each name;
        an `InputError` for others.

        A key of the model's own config means what the config's mapping does with it. Another
        spelling that means two things takes what the other names leave, then what the model has.
        """
        names = dict.fromkeys(names)
        fixed = {name: number for name in names if (number := self._fixed(name)) is not None}
        fixed = {**self._of_the_field({*names} - {*fixed}), **fixed}
        candidates = {name: self._candidates(name) for name in names if name not in fixed}
        settled = {name: ours[0] for name, ours in candidates.items() if len(ours) == 1}
        for name, ours in candidates.items():
            if name not in settled:
                settled[name] = self._choose(name, ours, {*settled.values()})
        sizes = {name: self.size(ours, asked=name) for name, ours in settled.items()}
        return {name: fixed[name] if name in fixed else sizes[name] for name in names}

    def knows(self, name: str) -> bool:
        """Tell whether `name` is a name of the legend or a number of the model's own config."""
        known = name in NAMES or name in ALSO or name in FIELD or bool(legend.ours(name))
        return known or name in self.fields

    def _of_the_field(self, names: set[str]) -> dict[str, sympy.Expr]:
        """Return what the letters of papers on scaling, or of Megatron's, mean."""
        meanings: dict[str, tuple[sympy.Expr, str]] = {}
        if (names & {"l", "a", "s"}) - {str(letter) for letter in self.numbers}:
            for name in names & MEGATRON.keys():
                ours = MEGATRON[name]
                meanings[name] = self.size(ours, asked=name), f"{ours}, as in Megatron's papers"
        elif "L" in names:
            meanings["L"] = self.size("n_layers", asked="L"), "n_layers"
            if "D" in names:
                raise InputError(
                    "'D' could be d_model or the tokens of a run: write d_model, "
                    "or batch_size*seq_len for the tokens"
                )
        elif "D" in names:
            tokens = LETTERS["batch_size"] * self.size("seq_len", asked="D")
            meanings["D"] = tokens, "the tokens of the run, batch_size·seq_len"
        elsewhere = {"P"} if LETTERS["n_positions"] in self.numbers and "D" not in names else set()
        if meanings.keys() & {*FIELD} and (of_model := names.intersection(PARAMS) - elsewhere):
            form = closed_form(self.spec, self.workload, "params")
            kinds = named_layers(self.spec, LETTERS["n_layers"])
            params = sympy.Add(*form.parts.values()).xreplace(
                {n: form for form, n in kinds.items()}
            )
            meanings |= dict.fromkeys(of_model, (params, "the parameters of the model"))
        for name, (_, words) in sorted(meanings.items()):
            self._note(f"{name} is taken as {words}")
        return {name: expr for name, (expr, _) in meanings.items()}

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _fixed(self, name: str) -> sympy.Expr | None:
        """Return the meaning of a key of the model's own config that is no field."""
        value = self.config.get(name)
        if name in NAMES or self._is_ours(name) or name in self.fields:
            return None
        if type(value) is not int or not self.fields:
            return None
        if name in self.keys.made:
            expr = self.keys.made[name]
            return expr.xreplace({s: self.size(s.name, asked=name) for s in expr.free_symbols})
        if any(self._has(o) and getattr(self.spec, o, None) == value for o in legend.ours(name)):
            return None
        self._note(f"{name} is {value} at whatever sizes: it is none of those that vary here")
        return sympy.Integer(value)

    def size(self, ours: str, *, asked: str) -> sympy.Expr:
        """Return the letter of one of our names; 0 or 1 where the model's structure fixes it."""
        if ours == BYTES.name:
            return BYTES_LETTER
        layers = next((t for t in LAYERS if t.name == ours), None)
        if layers is not None:
            return self._layers(layers, asked)
        if ours in ("seq_len", "kv_len"):
            # a forward attends to its own positions; a decode step has one query
            ours = "kv_len" if self.quantity == "decode_matmul_flops" else "seq_len"
        letter = LETTERS[ours]
        if letter in self.numbers:
            return letter
        value = getattr(self.spec, ours, 0 if ours == "prefix_len" else None)
        if value is not None:
            return sympy.Integer(value)
        other = STANDS_FOR.get(ours)
        if other is not None and LETTERS[other] in self.numbers:
            return LETTERS[other]
        if asked not in LETTERS and (meant := self._in_classes(asked)):
            return LETTERS[meant]
        has = [NAMES[letter.name] for letter in self.numbers]
        remedy = f"its sizes are {', '.join(has)}"
        if RELATED.get(ours) in has:
            remedy = f"it has {RELATED[ours]}"
        meaning = legend.by_name(ours).meaning
        raise InputError(f"{asked}: {self.model} has no {ours} ({meaning}); {remedy}")

    def _layers(self, term: legend.Term, asked: str) -> sympy.Expr:
        layers = layers_of(self.spec.substituted(n_layers=LETTERS["n_layers"]))
        if term.letter == "N_w" and self.spec.window is not None:
            return layers.get(term.letter, LETTERS["n_layers"])
        if term.letter not in layers:
            raise InputError(
                f"{asked}: in {self.model} no pattern says which are {term.meaning}; leave it out"
            )
        return layers[term.letter]

    def _candidates(self, name: str) -> tuple[str, ...]:
        if name in NAMES:
            return (NAMES[name],)
        if name in self.fields and not self._is_ours(name):
            # one key may be two sizes: num_layers of T5 is both stacks
            both = tuple(ours for ours in self.fields[name] if ours in legend.ours(name))
            return both or self.fields[name]
        if ours := (ALSO[name],) if name in ALSO else legend.ours(name):
            return ours
        spellings = {other for term in legend.TERMS for other in term.elsewhere}
        known = {*(t.name for t in legend.TERMS), *spellings, *ALSO, *NAMES}
        remedy = nearest(name, known, "see the legend of `metacount formula`")
        raise InputError(f"'{shown(name)}' is no size that is known here; {remedy}")

    def _choose(self, name: str, candidates: tuple[str, ...], taken: set[str]) -> str:
        left = [ours for ours in candidates if ours not in taken] or list(candidates)
        if name in self.fields:
            return left[0]
        if len(left) > 1 and name in self.config:
            left = [o for o in left if getattr(self.spec, o, None) == self.config[name]] or left
        if len(left) > 1:
            left = [ours for ours in left if self._has(ours)] or left
        if len(left) > 1 and (ours := self._in_classes(name)):
            return ours
        if len(left) > 1:
            raise InputError(
                f"'{shown(name)}' could be {' or '.join(left)}: {self.model} has "
                f"{'both' if len(left) == 2 else 'all'}; write one of these names"
            )
        return left[0]

    def _in_classes(self, name: str) -> str | None:
        """Return what a config of the model's own class means by a name, where none is given."""
        if self.fields:
            return None
        sizes = frozenset(t.name for t in legend.MODEL_TERMS if LETTERS[t.name] in self.numbers)
        ours, model_type = meant_in_classes(name, sizes) or (None, "")
        if ours is not None:
            self._note(f"{name} is taken as {ours}, as in configs of {model_type}")
        return ours

    def _is_ours(self, name: str) -> bool:
        """Tell whether `name` is a field's own name, and no key of a config for something else.

        Mamba-2's config calls the width of a state's head `head_dim`: no attention has one there;
        Gemma 4's the width of a head in layers with a window.
        """
        if legend.ours(name) != (name,) or name not in self.fields.get(name, (name,)):
            return False
        absent = name in LETTERS and not self._has(name) and getattr(self.spec, name, None) is None
        return not (absent and name in self.config)

    def _has(self, ours: str) -> bool:
        return LETTERS[ours] in self.numbers
