"""Parameters of a block: its matrices, biases and norms, their shares, and how they grow."""

from __future__ import annotations

from fractions import Fraction

from metacount.formulas import sublayers
from metacount.formulas.sublayers import block_params
from metacount.frozen import frozen
from metacount.spec import legend
from metacount.spec.attention import LatentAttention
from metacount.teaching.page import Exercise, asked, rows
from metacount.teaching.parts import letters, without_biases
from metacount.teaching.texts import evaluated

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.formulas.dim import Dim
    from metacount.spec import ModelSpec
    from metacount.teaching.page import Here, Rows, Values

ATTENTION, FEED_FORWARD = "attention", "ffn"
GROUPED = {
    "q_proj": ("h*h_d", "d"),
    "k_proj": ("h_kv*h_d", "d"),
    "v_proj": ("h_kv*h_d", "d"),
    "o_proj": ("d", "h*h_d"),
}
GATED_QUERY = {"q_proj": ("2*h*h_d", "d")}  # each head's queries, and a gate of its output
LATENT = {
    "q_a_proj": ("r_q", "d"),
    "q_b_proj": ("h*(d_n + d_r)", "r_q"),
    "kv_a_proj": ("d_c + d_r", "d"),
    "kv_b_proj": ("h*(d_n + d_v)", "d_c"),
    "o_proj": ("d", "h*d_v"),
}
WHOLE_QUERY = {"q_proj": ("h*(d_n + d_r)", "d")}  # MLA without a bottleneck for its queries


@frozen
class Matrix:
    """One matrix [rows, columns]; `letters` are the same in letters. `part` is attention or ffn."""

    part: str
    name: str
    letters: tuple[str, str]
    rows: int
    columns: int

    @property
    def params(self) -> int:
        """Its values."""
        return self.rows * self.columns

    @property
    def shape_letters(self) -> str:
        """[out, in] in letters."""
        return f"[{', '.join(self.letters)}]".replace("*", "·")

    @property
    def shape(self) -> str:
        """[out, in] in numbers."""
        return f"[{self.rows}, {self.columns}]"


def sizes_by_letter(spec: ModelSpec) -> dict[str, Dim]:
    """Return the model's sizes under their letters."""
    return {t.letter: getattr(spec, t.name) for t in legend.MODEL_TERMS}


def matrices(spec: ModelSpec) -> list[Matrix]:
    """List the matrices of the self-attention and the feed-forward of a model's last block.

    They must come to what the formulas count, biases and vectors apart.

    >>> from metacount.catalog import entry
    >>> [m.shape for m in matrices(entry("llama-7b").spec())][-1]
    '[4096, 11008]'
    """
    sizes = sizes_by_letter(spec)
    sizes["m_s"] = sizes["m_s"] or sizes["m_e"]
    named = {ATTENTION: _attention(spec), FEED_FORWARD: _feed_forward(spec)}
    found = [
        Matrix(
            part=part,
            name=name,
            letters=shape,
            rows=int(evaluated(shape[0], sizes)),
            columns=int(evaluated(shape[1], sizes)),
        )
        for part, shapes in named.items()
        for name, shape in shapes.items()
    ]
    bare = vectors_left_out(spec)
    moe = has_experts(spec)
    counted = sublayers.self_attention_params(bare)
    counted += (
        sublayers.moe_layer_params(bare, active=False) if moe else sublayers.dense_ffn_params(bare)
    )
    if sum(matrix.params for matrix in found) != counted:
        raise AssertionError(f"the matrices of a block are not the {counted} that formulas count")
    return found


def vectors_left_out(spec: ModelSpec) -> ModelSpec:
    """Return the same sizes without biases, sinks and shared experts' gates."""
    from metacount.teaching.parts import without_biases

    bare = without_biases(spec)
    return bare.substituted(mla_bias=False, shared_expert_gate=False)


def has_experts(spec: ModelSpec) -> bool:
    """Tell whether the last block is a mixture of experts."""
    return spec.is_moe_layer(spec.last_stack.n_layers - 1)


def _attention(spec: ModelSpec) -> dict[str, tuple[str, str]]:
    mixer = spec.last_stack.attention
    if not isinstance(mixer, LatentAttention):
        return {**GROUPED, **GATED_QUERY} if spec.output_gate else GROUPED
    if mixer.q_lora_rank is not None:
        return LATENT
    return {**WHOLE_QUERY, **{n: s for n, s in LATENT.items() if not n.startswith("q_")}}


def _feed_forward(spec: ModelSpec) -> dict[str, tuple[str, str]]:
    names = ("gate_proj", "up_proj") if spec.gated else ("up_proj",)
    if not has_experts(spec):
        return {**dict.fromkeys(names, ("m", "d")), "down_proj": ("d", "m")}
    found = {"router": ("E", "d")}
    found |= {f"experts.{n}": ("E*m_e", "d") for n in names} | {"experts.down": ("E*d", "m_e")}
    found = {name.removesuffix("_proj"): shape for name, shape in found.items()}
    if spec.n_shared_experts:
        found |= {f"shared.{n.removesuffix('_proj')}": ("E_s*m_s", "d") for n in names}
        found |= {"shared.down": ("d", "E_s*m_s")}
    return found


SUCH_AS = ("textbook-block", "bert-base", "gpt2-medium", "llama-7b", "mixtral-8x7b")
NEEDS = "a block of attention and a feed-forward, without an indexer"
FACTORS = (1, 2, 4)  # of the width, in the table of growth
BIASES = ("q_bias", "k_bias", "v_bias", "o_bias", "ffn_bias")


def fits(spec: ModelSpec) -> bool:
    """Tell whether the matrices that the lesson lists are all that a block has."""
    return bool(spec.attention != "none" and spec.n_index_heads is None and _stands_in_it(spec))


def _stands_in_it(spec: ModelSpec) -> bool:
    """Tell whether a hybrid has a block of attention with the feed-forward of the last block."""
    mixers, ffns, n = spec.mixer_pattern, spec.ffn_pattern, spec.last_stack.n_layers
    return any(
        mixers[i % len(mixers)] == "A"
        and ffns[i % len(ffns)] != "N"
        and spec.is_moe_layer(i) == has_experts(spec)
        for i in range(n)
    )


def one_block(spec: ModelSpec) -> dict[str, int]:
    """Count the parameters of the last block by role, without the cross-attention of a decoder."""
    return block_params(spec, moe=has_experts(spec))


def total(spec: ModelSpec) -> int:
    """Count the parameters of the last block."""
    return sum(one_block(spec).values())


def table(here: Here) -> Rows:
    """List every matrix, with the sums of what belongs together, then vectors, then the block."""
    spec, whole = here.spec, total(here.spec)
    found = []

    def add(name: str, shape: tuple[str, str], params: int) -> None:
        found.append((name, *shape, params, _share(params, whole)))

    for part, word in {ATTENTION: "attention", FEED_FORWARD: "feed-forward"}.items():
        own = [matrix for matrix in matrices(spec) if matrix.part == part]
        for matrix in own:
            add(matrix.name, (matrix.shape_letters, matrix.shape), matrix.params)
            if matrix.name == "v_proj":
                add(here.say("q, k and v"), ("", ""), sum(m.params for m in own[:3]))
        add(here.say(word), ("", ""), sum(matrix.params for matrix in own))
    for word, params in {"norms": norms(spec), "biases and other vectors": vectors(spec)}.items():
        if params:
            add(here.say(word), ("", ""), params)
    add(here.say("block"), ("", ""), whole)
    return rows(found)


def _share(part: int, whole: int) -> str:
    from metacount.units import share

    return share(part, whole)


def norms(spec: ModelSpec) -> int:
    """Count the parameters of the norms of the last block, those inside its attention too."""
    return one_block(spec)["norm"]


def vectors(spec: ModelSpec) -> int:
    """Count what is left of the block: biases, sinks, Transformer-XL's positions."""
    return total(spec) - norms(spec) - sum(matrix.params for matrix in matrices(spec))


def matrices_of(spec: ModelSpec, part: str) -> int:
    """Count the values of the matrices of the attention, or of the feed-forward."""
    return sum(matrix.params for matrix in matrices(spec) if matrix.part == part)


def growth(here: Here) -> Rows:
    """Count the parameters that a block of this kind has when it is so many times as wide."""
    spec = here.spec
    wide = (
        "d_model",
        "d_ff",
        "d_ff_expert",
        "n_heads",
        "n_kv_heads",
        "q_lora_rank",
        "kv_lora_rank",
        "d_ff_shared",
    )
    found = []
    for factor in FACTORS:
        grown = spec.substituted(
            **{name: getattr(spec, name) * factor for name in wide if getattr(spec, name)}
        )
        params = sum(block_params(grown, moe=has_experts(spec)).values())
        found.append((f"{factor} ×", grown.d_model, params, f"{params / total(spec):.2f} ×"))
    return rows(found)


def with_biases(here: Here) -> int:
    """Count the block's parameters with biases on q, k, v, o and the feed-forward."""
    return total(here.spec.replace(**dict.fromkeys(BIASES, True)))


def answer(here: Here) -> Exercise:
    """Make the exercise: all parameters of the model, as its closed form has them."""
    return asked(here.spec)


VALUES: Values = {
    "sizes": lambda here: here.sizes(
        "d_model",
        "n_heads",
        "n_kv_heads",
        "head_dim",
        "d_ff",
        "d_ff_expert",
        "n_experts",
        "n_layers",
    ),
    "table": table,
    "block": lambda here: total(here.spec),
    "ffn_to_attention": lambda here: Fraction(
        matrices_of(here.spec, FEED_FORWARD), matrices_of(here.spec, ATTENTION)
    ),
    "attention_share": lambda here: Fraction(matrices_of(here.spec, ATTENTION), total(here.spec)),
    "ffn_share": lambda here: Fraction(matrices_of(here.spec, FEED_FORWARD), total(here.spec)),
    "norm_share": lambda here: Fraction(norms(here.spec), total(here.spec)),
    "attention_form": lambda here: _form(here.spec, "attention_matrices"),
    "ffn_form": lambda here: _form(here.spec, "ffn_matrices"),
    "attention_in_squares": lambda here: _squares(here.spec, ATTENTION),
    "ffn_in_squares": lambda here: _squares(here.spec, FEED_FORWARD),
    "block_in_squares": lambda here: (
        _squares(here.spec, ATTENTION) + _squares(here.spec, FEED_FORWARD)
    ),
    "square": lambda here: _form(here.spec.replace(), "square"),
    "d_ff_ratio": lambda here: Fraction(here.spec.d_ff or here.spec.d_ff_expert, here.spec.d_model),
    "blocks": lambda here: here.spec.n_layers * total(here.spec),
    "alike": lambda here: _alike(here.spec),
    "growth": growth,
    "moe": lambda here: has_experts(here.spec),
    "grouped": lambda here: here.spec.kv_lora_rank is None and not here.spec.is_moe,
    "biases_shown": lambda here: (
        vectors(here.spec) or (here.spec.kv_lora_rank is None and not here.spec.is_moe)
    ),
    "vectors": lambda here: vectors(here.spec),
    "without_biases": lambda here: sum(block_params(without_biases(here.spec), moe=False).values()),
    "with_biases": with_biases,
    "bias_share": lambda here: Fraction(
        with_biases(here) - sum(block_params(without_biases(here.spec), moe=False).values()),
        with_biases(here),
    ),
    "answer": answer,
}


def _alike(spec: ModelSpec) -> bool:
    """Tell whether the last block is like all others, and there is no second stack."""
    one = not spec.has_encoder and not spec.n_dense_layers and spec.moe_every == 1
    return one and spec.last_stack.uniform


def _squares(spec: ModelSpec, part: str) -> Fraction:
    """Count the values of a part's matrices in units of d²."""
    return Fraction(matrices_of(spec, part), spec.d_model**2)


def _form(spec: ModelSpec, part: str) -> str:
    """Write the closed form of a part in letters; d² itself for `square`."""
    import sympy

    from metacount.algebra.writing import in_letters

    if part == "square":
        return in_letters(sympy.Symbol("d") ** 2)
    return in_letters(letters(spec, part))
