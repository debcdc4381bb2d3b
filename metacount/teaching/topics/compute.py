"""Parameters against compute: which work costs what, wider feed-forwards, 6·N·D, dense and MoE."""

from __future__ import annotations

from fractions import Fraction

from metacount import catalog
from metacount.formulas import feed_forward, model, sublayers
from metacount.spec import DTYPE_BYTES, Request
from metacount.teaching.page import asked
from metacount.teaching.texts import shown
from metacount.textbook.count import fitted
from metacount.units import exact, flops, gib, share, short

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec import ModelSpec
    from metacount.teaching.page import Here, Rows, Values

SUCH_AS = ("llama-7b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3")
NEEDS = "a decoder with a feed-forward, without an encoder"
WIDTHS = (2, 4, 8)  # of the feed-forward, in d
LENGTHS = (128, 2048, 8192, 32768)
BATCHES = (1, 8, 64)
BESIDE = ("llama-7b", "mixtral-8x7b", "llama-65b", "deepseek-v3")
PASSES = {"forward": 1, "backward": 2}  # products of a linear layer: y; and those of dx and dW
PER_MULTIPLY_ADD = 2
DTYPE = "bf16"


def fits(spec: ModelSpec) -> bool:
    """Tell whether a model with a feed-forward reads a prompt and continues it with one stack."""
    decodes = spec.kind in ("decoder", "prefix-decoder") and spec.head is not None
    return bool(decodes and (spec.d_ff or spec.d_ff_expert))


def costs(here: Here) -> list[tuple[str, int, Fraction]]:
    """List role by role the parameters that a token uses, and its FLOPs in a whole sequence."""
    n = fitted(here.spec, Request()).seq_len
    params = model.active_params_by_role(here.spec)
    flops_ = model.matmul_flops_by_role(here.spec, batch_size=1, seq_len=n)
    found = [(role, int(n_), Fraction(int(flops_[role]), n)) for role, n_ in params.items()]
    return [(role, count, each) for role, count, each in found if count or each]


def by_role(here: Here) -> Rows:
    """Write `costs`, and how many FLOPs a parameter takes."""
    return [
        (role, exact(count), flops(round(each)), _per_parameter(count, each))
        for role, count, each in costs(here)
    ]


def _per_parameter(count: int, each: Fraction) -> str:
    return shown(float(each / count), "fixed") if count else "–"


def few_vectors(here: Here) -> bool:
    """Tell whether a role that shows the FLOPs of matrices alone has vectors besides."""
    alone = shown(float(PER_MULTIPLY_ADD), "fixed")
    return any(
        _per_parameter(count, each) == alone and each != PER_MULTIPLY_ADD * count
        for _, count, each in costs(here)
    )


def wider(here: Here) -> Rows:
    """Compare the model with other widths of its feed-forward: parameters and FLOPs of a token."""
    spec = here.spec
    n = fitted(spec, Request()).seq_len
    own = (here.model.id, spec)
    letter = "m_e" if spec.d_ff is None else "m"
    field = "d_ff_expert" if spec.d_ff is None else "d_ff"
    changed = [(f"{letter} = {w}·d", spec.replace(**{field: w * spec.d_model})) for w in WIDTHS]
    base = int(model.params(spec))
    found: Rows = []
    other = [_other_kind(spec)] if spec.d_ff and not spec.is_moe else []
    for name, each in (own, *other, *changed):
        params = int(model.params(each))
        cost = Fraction(int(model.matmul_flops(each, batch_size=1, seq_len=n)), n)
        found.append(
            (
                name,
                short(params),
                shown(params / base, "fixed") + " ×",
                flops(round(cost)),
                gib(int(_cache(each))),
            )
        )
    return found


def _other_kind(spec: ModelSpec) -> tuple[str, ModelSpec]:
    """Return the model with a plain feed-forward of 4·d in place
    of its gated one, or the other way.
    """
    d = spec.d_model
    if spec.gated:
        return "GELU, m = 4·d", spec.replace(
            gated=False, activation="gelu", swish_beta=1.0, d_ff=4 * d
        )
    width = feed_forward.gated_d_ff(d, multiple_of=256)
    changed = spec.replace(gated=True, activation="silu", d_ff=width)
    return f"SwiGLU, m = {Fraction(8, 3)}·d", changed


def _cache(spec: ModelSpec) -> int:
    return int(model.kv_cache_bytes_per_token(spec, bytes_per_value=DTYPE_BYTES[DTYPE]))


def feed_forwards(here: Here) -> Rows:
    """Compare one feed-forward, plain and gated, at widths of about equal parameters."""
    d = here.spec.d_model
    gated = feed_forward.gated_d_ff(d, multiple_of=256)
    return [
        (
            "GELU, 4·d",
            exact(4 * d),
            exact(int(sublayers.plain_params(d, 4 * d))),
            flops(int(sublayers.plain_matmul_flops(1, d, 4 * d))),
        ),
        (
            f"SwiGLU, {Fraction(8, 3)}·d",
            exact(gated),
            exact(int(sublayers.glu_params(d, gated))),
            flops(int(sublayers.glu_matmul_flops(1, d, gated))),
        ),
    ]


def training(here: Here) -> Rows:
    """Count the FLOPs of training on one token by length:
    exact, causal, and by the rule of thumb.
    """
    spec = here.spec
    rule = rule_of_thumb(spec)
    times = sum(PASSES.values())
    found: Rows = []
    for n in LENGTHS:
        full = Fraction(times * int(model.matmul_flops(spec, batch_size=1, seq_len=n)), n)
        kept = Fraction(times * int(model.causal_matmul_flops(spec, batch_size=1, seq_len=n)), n)
        found.append(
            (
                exact(n),
                flops(round(full)),
                flops(round(kept)),
                flops(rule),
                shown(float(rule / full), "fixed"),
            )
        )
    return found


def rule_of_thumb(spec: ModelSpec) -> int:
    """Compute 6·N for one token, with N the parameters that it uses."""
    return PER_MULTIPLY_ADD * sum(PASSES.values()) * int(model.active_params(spec))


def beside(here: Here) -> Rows:
    """Compare dense models and mixtures:
    bytes stored, parameters used for a token, FLOPs of decoding it.
    """
    named = {id: catalog.entry(id).spec() for id in BESIDE}
    named[here.model.id] = here.spec
    found = []
    for name, spec in named.items():
        n = fitted(spec, Request()).seq_len
        stored, used = int(model.params(spec)), int(model.active_params(spec))
        cost = int(model.decode_matmul_flops(spec, batch_size=1, kv_len=n))
        found.append(
            (
                stored,
                (
                    name,
                    short(stored),
                    gib(stored * DTYPE_BYTES[DTYPE]),
                    short(used),
                    share(used, stored),
                    flops(cost),
                ),
            )
        )
    return [row for _, row in sorted(found)]


def intensity(here: Here) -> Rows:
    """Compute the FLOPs for each byte of weights and cache in a step of decoding,
    by the number of sequences.
    """
    spec = here.spec
    n = fitted(spec, Request()).seq_len
    found: Rows = []
    for batch in BATCHES:
        cost = int(model.decode_matmul_flops(spec, batch_size=batch, kv_len=n))
        weights = int(model.params(spec)) * DTYPE_BYTES[DTYPE]
        cache = batch * int(
            model.kv_cache_bytes(spec, batch_size=1, seq_len=n, bytes_per_value=DTYPE_BYTES[DTYPE])
        )
        found.append(
            (
                str(batch),
                flops(cost),
                gib(weights),
                gib(cache),
                shown(cost / (weights + cache), "fixed"),
            )
        )
    return found


VALUES: Values = {
    "by_role": by_role,
    "few_vectors": few_vectors,
    "seq": lambda here: fitted(here.spec, Request()).seq_len,
    "per": PER_MULTIPLY_ADD,
    "wider": wider,
    "feed_forwards": feed_forwards,
    "forward": lambda here: PASSES["forward"],
    "backward": lambda here: PASSES["backward"],
    "passes": lambda here: sum(PASSES.values()),
    "six": lambda here: PER_MULTIPLY_ADD * sum(PASSES.values()),
    "N": lambda here: int(model.active_params(here.spec)),
    "rule": lambda here: rule_of_thumb(here.spec),
    "training": training,
    "moe": lambda here: here.spec.is_moe,
    "stored_rule": lambda here: (
        PER_MULTIPLY_ADD * sum(PASSES.values()) * int(model.params(here.spec))
    ),
    "beside": beside,
    "intensity": intensity,
    "answer": lambda here: asked(here.spec, "matmul_flops"),
    "answer_causal": lambda here: asked(here.spec, "causal_matmul_flops"),
}
