"""Describes multi-token-prediction modules: layers that predict the tokens after the next one."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec.attention import NoAttention
from metacount.spec.field import MAX_LAYERS, altered, flag, part, size
from metacount.spec.recurrent import NoRecurrent
from metacount.spec.stack import BESIDE

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec.model import ModelSpec

# Values of these fields that go with such modules; any other is refused.
PLAIN = {
    "kind": ("decoder",),
    "norm_placement": ("pre",),
    "position": ("rope", "none"),
}


@part
class MultiToken:
    """Modules that read the model's hidden state and the next token, each with a layer of its own.

    Its layer has attention over everything, and experts where the model has experts. Embedding and
    head are those of the model.
    """

    n_modules: int = size(
        "n_mtp_layers",
        "N_p",
        "multi-token-prediction modules behind the last block, counted apart",
        "modules",
        "num_nextn_predict_layers num_mtp_layers mtp_num_hidden_layers num_mtp_modules",
        most=MAX_LAYERS,
    )
    dense: bool = flag(
        "mtp_dense",
        "the layer of a prediction module has the dense feed-forward, not the experts",
        default=False,
    )


def check_mtp(spec: ModelSpec) -> None:
    """Raise `SpecError` for a model that its prediction modules do not go with."""
    modules, stack = spec.prediction, spec.last_stack
    if modules is None:
        return
    for name, known in PLAIN.items():
        value = getattr(spec, name)
        if value not in known:
            words = " or ".join(str(word) for word in known)
            raise SpecError(
                name,
                f"of a model with n_mtp_layers is {words}",
                value,
                f"choose {words}, or leave n_mtp_layers out",
            )
    if stack.shared is not None:
        raise SpecError(
            "n_mtp_layers",
            "is not defined for a model with shared blocks",
            modules.n_modules,
            "leave n_mtp_layers out",
        )
    if spec.embedding is None or spec.head is None:
        raise SpecError(
            "n_mtp_layers",
            "needs an embedding and a head, which its modules share",
            modules.n_modules,
            "leave n_mtp_layers out",
        )
    if isinstance(stack.attention, NoAttention) or stack.feed_forward is None:
        missing = "activation" if stack.feed_forward is None else "attention"
        raise SpecError(
            "n_mtp_layers",
            f"needs {missing}: a prediction module has a layer with it",
            modules.n_modules,
            "leave n_mtp_layers out",
        )
    if BESIDE in stack.ffn_pattern and not modules.dense:
        raise SpecError(
            "mtp_dense",
            f"must be true where experts stand beside a feed-forward ({BESIDE} in ffn_pattern)",
            False,
            "set mtp_dense",
        )
    if modules.dense and stack.mixture is None:
        raise SpecError(
            "mtp_dense", "has no meaning without n_experts", True, "leave mtp_dense out"
        )


def left_out(spec: ModelSpec) -> tuple[str, ...]:
    """Say that no figure has the prediction modules of a model in it; nothing without them."""
    if spec.prediction is None:
        return ()
    n = spec.prediction.n_modules
    return (
        f"not counted: {n} multi-token-prediction module{'s' if n > 1 else ''}; "
        "`count` says what they add",
    )


def prediction_layers(spec: ModelSpec) -> ModelSpec:
    """Give the layers of the prediction modules as the stack of a model; sizes may be symbols.

    Each has the attention of `spec`, over everything, and its experts, or its dense feed-forward.
    """
    modules, stack = spec.prediction, spec.last_stack
    assert modules is not None  # who asks has asked
    experts = stack.mixture is not None and not modules.dense
    own = altered(
        stack,
        n_layers=modules.n_modules,
        mixer_pattern="A",
        ffn_pattern="E" if experts else "F",
        mixture=stack.mixture if experts else None,
        recurrent=NoRecurrent(),
        attention=altered(stack.attention, window=None),
        norms=altered(stack.norms, first=True),
    )
    return altered(spec, n_layers=modules.n_modules, decoder=own, prediction=None)
