"""Megatron-LM's arguments that size a model: names, defaults, and what a script gives."""

from __future__ import annotations

from metacount.errors import InputError, SpecError, nearest, shown
from metacount.formats.megatron_run import runs_only

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

# Arguments with one value that size the model, and what Megatron takes where they are not given.
VALUES: Json = {
    "--num-layers": None,
    "--hidden-size": None,
    "--num-attention-heads": None,
    "--max-position-embeddings": None,
    "--vocab-size": None,
    "--padded-vocab-size": None,
    "--ffn-hidden-size": None,
    "--kv-channels": None,
    "--num-query-groups": 1,
    "--make-vocab-size-divisible-by": 128,
    "--tensor-model-parallel-size": 1,
    "--position-embedding-type": "learned_absolute",
    "--rotary-base": 10000,
    "--rotary-percent": 1.0,
    "--rotary-seq-len-interpolation-factor": None,
    "--rope-scaling-factor": 8.0,
    "--normalization": "LayerNorm",
    "--norm-epsilon": 1e-5,
    "--num-experts": None,
    "--moe-router-topk": 2,
    "--moe-ffn-hidden-size": None,
    "--moe-layer-freq": 1,
    "--moe-shared-expert-intermediate-size": None,
    "--moe-router-score-function": "softmax",
    "--moe-router-topk-scaling-factor": None,
    "--moe-router-num-groups": None,
    "--moe-router-group-topk": None,
}
FLAGS = (
    "--group-query-attention",
    "--use-rotary-position-embeddings",
    "--no-position-embedding",
    "--use-rope-scaling",
    "--swiglu",
    "--squared-relu",
    "--quick-geglu",
    "--openai-gelu",
    "--no-bias-gelu-fusion",
    "--disable-bias-linear",
    "--add-qkv-bias",
    "--qk-layernorm",
    "--untie-embeddings-and-output-weights",
    "--apply-layernorm-1p",
    "--rotary-interleaved",
    "--moe-router-pre-softmax",
    "--moe-router-enable-expert-bias",
    "--moe-shared-expert-gate",
)
# Other names of the same.
ALIASES = {"--layernorm-epsilon": "--norm-epsilon"}
NEEDED = ("--num-layers", "--hidden-size", "--num-attention-heads", "--max-position-embeddings")


def values_of(given: dict[str, list[list[str]]], where: str) -> Json:
    """Type the arguments that size the model; any that is not known is an error."""
    data: Json = {}
    for spelled, times in given.items():
        name = ALIASES.get(spelled.replace("_", "-"), spelled.replace("_", "-"))
        if name in FLAGS:
            data[name] = True
        elif name in VALUES:
            texts = list(dict.fromkeys(words[0] if words else "" for words in times))
            if len(texts) > 1 or not texts[0]:
                rule = "is given with several values" if len(texts) > 1 else "needs a value"
                raise SpecError(name, rule, ", ".join(texts), "give one")
            value = _typed(name, texts[0])
            if data.setdefault(name, value) != value:
                raise SpecError(name, f"is given as {data[name]} too", value, "give one")
        elif not runs_only(name):
            known = (*VALUES, *FLAGS, *ALIASES)
            raise InputError(
                f"{where}: {shown(name)} is not an argument that is understood here, "
                f"and it may change the model; "
                f"{nearest(name, known, 'remove it if it does not')}"
            )
    return data


def _typed(name: str, text: str) -> int | float | str:
    """Read a number where the text is one; what only a shell knows is none."""
    if "$" in text or "`" in text:
        raise SpecError(
            name, "must be written down: only a shell knows it here", text, "write its value"
        )
    for kind in (int, float):
        try:
            return kind(text) if len(text) < 40 else text
        except ValueError:
            continue
    return text
