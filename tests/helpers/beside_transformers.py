"""One config, two models: transformers' and ours with its weights; what they compute, in float64.

Compared are the logits of a forward over all tokens and of a prefill followed by one token after
the other through each side's own cache, and the gradients of a loss for every parameter.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from helpers.in_float64 import build_in_float64, in_float64
from helpers.small_configs import NEEDED, SMALL
from metacount.errors import SpecError
from metacount.huggingface.config.to_spec import Mapped, spec_from_config
from metacount.huggingface.module.model import config_class
from metacount.huggingface.weights import WeightsError, load_weights
from metacount.measure.theirs import KEEPS_GIVEN
from metacount.modules import Model
from metacount.modules.build import build

PREFILL, TOTAL, SOURCE, VOCAB = 9, 17, 13, 101


class Found(NamedTuple):
    """`kind`: equal, different, refused (by ours), impossible (for transformers); and the rest.

    `distance` is the largest difference, relative to the largest value of its tensor's own kind.
    """

    kind: str
    reason: str = ""
    distance: float = 0.0


def tokens(seed: int, length: int = TOTAL) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (2, length), generator=generator)


def compare(
    config: dict[str, Any], *, bound: float, decode: bool = True, gradients: bool = True
) -> Found:
    """What becomes of a config on both sides."""
    attention = "sdpa" if config.get("alibi") else "eager"  # eager Falcon adds its ALiBi twice
    try:
        theirs = build_in_float64(copy.deepcopy(config), attention=attention)
        forward(theirs, tokens(2), None)
    except Exception as error:  # whatever a class of theirs raises for a config it cannot run
        return Found("impossible", f"{type(error).__name__}: {error}")
    try:
        mapped = spec_from_config(config)
        ours = build(mapped.spec, device="cpu", dtype="fp64", seed=1)
        load_weights(ours, theirs.state_dict(), mapped)
    except (SpecError, WeightsError) as error:
        return Found("refused", str(error))
    found = {"logits": logits_apart(ours, theirs)}
    if gradients:
        found["gradients"] = gradients_apart(ours, theirs, mapped)
    if decode and mapped.spec.kind != "encoder":
        fresh = build_in_float64(copy.deepcopy(config), attention=attention)
        found["decode"] = decode_apart(ours, fresh)
    worst = max(found, key=lambda name: found[name])
    kind = "equal" if found[worst] <= bound else "different"
    return Found(kind, worst, found[worst])


def forward(theirs: Any, ids: Tensor, past: Any, **options: Any) -> Any:
    """transformers' output; an encoder-decoder's reads the same source each time."""
    if theirs.config.is_encoder_decoder:
        options |= {"input_ids": tokens(3, SOURCE), "decoder_input_ids": ids}
    else:
        options["input_ids"] = ids
    if past is not None:
        options[cache_name(theirs)] = past
    with in_float64():
        return theirs(**options)


def cache_name(theirs: Any) -> str:
    """Mamba's cache has a name of its own."""
    takes = inspect.signature(theirs.forward).parameters
    return "cache_params" if "cache_params" in takes else "past_key_values"


def our_logits(ours: Model, ids: Tensor, **options: Any) -> Tensor:
    if ours.spec.has_encoder:
        options["memory_BTD"] = ours.encode(tokens(3, SOURCE))
    logits = ours(ids, **options).logits_BSV
    assert logits is not None
    return logits


def apart(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    assert ours.dtype == theirs.dtype == torch.float64
    assert ours.shape == theirs.shape
    if not torch.isfinite(ours).all():
        return torch.inf
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30))


@torch.no_grad()
def logits_apart(ours: Model, theirs: Any) -> float:
    expected = forward(theirs, tokens(2), None).logits
    assert expected.abs().max() > 1e-2
    return apart(our_logits(ours, tokens(2)), expected)


def gradients_apart(ours: Model, theirs: Any, mapped: Mapped) -> float:
    """Of the sum of all logits with random weights; theirs are loaded as weights, for our names.

    Relative to the largest of the same tensor, or a thousandth of the largest of all.
    """
    theirs.zero_grad()
    ours.zero_grad()
    # its cache is written in place, which its own backward does not bear
    options = {"use_cache": False} if theirs.config.model_type == "xlstm" else {}
    expected = forward(theirs, tokens(4), None, **options).logits
    weights = torch.randn(
        expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )
    (expected * weights).sum().backward()
    (our_logits(ours, tokens(4)) * weights).sum().backward()
    gradients = {
        name: t.clone() for name, t in theirs.named_buffers() if name in theirs.state_dict()
    }
    for name, parameter in theirs.named_parameters(remove_duplicate=False):
        none = torch.zeros_like(parameter)  # an expert that no token chose
        gradients[name] = none if parameter.grad is None else parameter.grad
    beside = build(mapped.spec, device="cpu", dtype="fp64", seed=1)
    load_weights(beside, gradients, mapped)
    found, largest = [], max(float(p.detach().abs().max()) for p in beside.parameters())
    for parameter, gradient in zip(ours.parameters(), beside.parameters(), strict=True):
        given = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        scale = max(float(gradient.detach().abs().max()), 1e-3 * largest)
        found.append(float((given - gradient).detach().abs().max()) / scale)
    return max(found)


@torch.no_grad()
def decode_apart(ours: Model, theirs: Any) -> float:
    """Prefill, then token by token, each side with its own cache; of latents absorbed, too."""
    ids, done, past = tokens(6), 0, None
    if type(theirs).__name__ in KEEPS_GIVEN:  # it fills the cache that it is given
        past = DynamicCache(config=theirs.config)
    parts = [ids[:, :PREFILL], *ids[:, PREFILL:].split(1, dim=1)]
    expected, found = [], []
    counted: dict[str, Any] = {"use_cache": True}
    for part in parts:
        if theirs.config.model_type == "bamba":  # alone it begins at position 0 again
            counted["position_ids"] = torch.arange(done, done + part.shape[1])[None]
        output = forward(theirs, part, past, **counted)
        past, done = getattr(output, cache_name(theirs), past), done + part.shape[1]
        expected.append(output.logits)
    for absorbed in {False, ours.spec.attention == "mla"}:
        cache = ours.new_cache()
        given = [our_logits(ours, part, cache=cache, absorbed=absorbed) for part in parts]
        found.append(apart(torch.cat(given, dim=1), torch.cat(expected, dim=1)))
    return max(found)


# Other sizes than those of SMALL: primes, as far as heads, pairs and groups allow.
OTHER = {
    "intermediate_size": 71,
    "intermediate_size_mlp": 59,
    "moe_intermediate_size": 23,
    "shared_expert_intermediate_size": 37,
    "ffn_dim": 67,
    "encoder_ffn_dim": 67,
    "decoder_ffn_dim": 67,
    "d_ff": 67,
    "q_lora_rank": 19,
    "kv_lora_rank": 13,
    "qk_nope_head_dim": 7,
    "v_head_dim": 5,
    "d_kv": 7,
    "n_embd": 40,
    "embedding_size": 19,
    "max_position_embeddings": 37,
}
WIDTHS = ("hidden_size", "d_model", "word_embed_proj_dim")


def odd(name: str) -> dict[str, Any]:
    """The base config of a type."""
    config = {"model_type": name, **copy.deepcopy({**NEEDED.get(name, {}), **SMALL[name]})}
    free = "head_dim" in config or "kv_lora_rank" in config
    config |= {key: OTHER[key] for key in OTHER if key in config}
    config |= {key: 42 if free else 60 for key in WIDTHS if key in config}
    declared = {field.name for field in dataclasses.fields(config_class(name))}
    if "max_position_embeddings" in declared:
        config["max_position_embeddings"] = 37
    if name in ("glm", "glm4"):
        config["head_dim"] = 12  # half of it rotates, in pairs
    if name.startswith(("qwen3_next", "qwen3_5")):
        config["head_dim"] = 16  # a quarter of it, more than one pair
    if name == "mamba2":
        config["head_dim"] = 14  # 6 heads of it are twice the width
    if name in ("phi", "persimmon", "bamba", "recurrent_gemma"):
        config["hidden_size"] = 72  # likewise, of heads that share the width
    if name == "xlstm":
        config["hidden_size"] = 192  # a third of it, and two, are multiples of 64
    if name in ("stablelm", "gpt_neox"):
        config["hidden_size"] = 96  # a quarter of it rotates
    if name in ("helium", "mixtral"):
        config |= {"num_attention_heads": 6, "head_dim": 10, "hidden_size": 60}
    if name == "t5":
        config |= {"relative_attention_num_buckets": 12, "relative_attention_max_distance": 13}
    return config
