"""The matrices of one block, by name, with their shapes in letters and in numbers."""

from __future__ import annotations

from metacount.formulas import sublayers
from metacount.frozen import frozen
from metacount.spec import legend
from metacount.spec.attention import LatentAttention
from metacount.teaching.texts import evaluated

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.formulas.dim import Dim
    from metacount.spec import ModelSpec

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
