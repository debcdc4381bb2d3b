"""Which role a module that is not ours gives to the tensors it owns.

The innermost module that claims a role wins. A module claims one by what transformers itself says
of it (input embedding, output head), by what it is (a norm, an embedding), by the attribute it is
in its parent (`fc1`), or by the words of its class's name without the family's. Names are compared
word by word, never by substring. What nobody claims is `other`, and listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from metacount.measure.counter import ROLES

# Words of class names, without the family's; the last one that stands here decides.
CLASS_WORDS = {
    word: role
    for role, words in {
        "attention": "Attention SelfAttention Attn QSAIndexer Indexer Compressor MLA MoA SDPA",
        "ffn": "MLP Mlp FFN FeedForward Intermediate DenseActDense DenseGatedActDense FF "
        "FeedFoward Feedforward MixFFN",
        "moe": "Experts Expert Router Moe MoE MOE SparseMLP",
        "norm": "Norm LayerNorm RMSNorm GroupNorm NoNorm",
        "head": "Head Predictions LMHead Decoder_Head",
        "embedding": "Embeddings Embedding",
        "position": "Rotary Rope Positional Position Relative",
        "recurrent": "Mixer Mamba Mamba2 SSM Delta GatedDeltaNet Recurrent TimeMix LSTM ShortConv",
        "other": "Conv Pooler Vision Audio Projector Tower Adapter Adapters Hyper Mhc",
    }.items()
    for word in words.split()
}

# Words that say more than the last one: an attention that keeps a state is none of pairs.
RECURRENT_WORDS = frozenset(["Delta", "Lightning"])
# RWKV calls its mixing of times so, which keeps a state and scores no pairs.
RECURRENT_CLASSES = frozenset(["RwkvSelfAttention"])

# The attribute that a module is in its parent, for plain linears and tables that blocks hold.
ATTRIBUTES = {
    name: role
    for role, names in {
        "ffn": "fc1 fc2 lin1 lin2 linear1 linear2 ffn mlp feed_forward intermediate ffn_output "
        "w1 w2 w3 wi wo up_proj down_proj gate_proj feedforward ffn_layer ff dense_h_to_4h "
        "dense_4h_to_h shared_mlp ffns",
        "attention": "self_attn attention attn self_attention cross_attn encoder_attn qkv_proj "
        "q_proj k_proj v_proj o_proj out_proj q_attn c_attn attentions crossattention",
        "position": "wpe position_embeddings embed_positions position_embedding pos_embed "
        "relative_attention_bias pos_emb position_embed positions_embed rel_embeddings "
        "relative_positions_encoding pos_embeddings ngram_embed_positions",
        "embedding": "embed_tokens wte word_embeddings token_embedding embeddings_project "
        "embedding_hidden_mapping_in token_type_embeddings project_in",
        "head": "lm_head cls lm_predictions vocab_transform vocab_projector vocab_layer_norm "
        "predictions generator_predictions generator_lm_head output_projection pred_layer",
        "recurrent": "mixer mamba linear_attn temporal_block mlstm_layer",
        "other": "pooler vision_tower vision_model audio_tower multi_modal_projector conv visual",
    }.items()
    for name in names.split()
}

# A table that is looked up by where, not by what.
POSITION_WORDS = frozenset((
    "wpe", "pos", "position", "positions", "positional", "relative", "rel", "x", "y", "h", "w",
    "left", "top", "right", "bottom", "depth", "distance",
))  # fmt: skip
POSITION_CLASSES = frozenset(["Position", "Positional", "Rotary"])
ROTARY_WORDS = frozenset(["Rotary", "Rope", "RoPE"])
SHORT_CONVOLUTION = "ShortConv"
EXPERT_LISTS = frozenset(["experts", "expert"])

_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+")


def words_of(name: str) -> list[str]:
    """Split a class name into its words.

    >>> words_of("DeepseekV3TopkRouter"), words_of("T5LayerFF"), words_of("LlamaRMSNorm")
    (['Deepseek', 'V3', 'Topk', 'Router'], ['T5', 'Layer', 'FF'], ['Llama', 'RMS', 'Norm'])
    """
    return _WORDS.findall(name)


class Roles:
    """The role of every module of one model, worked out once."""

    def __init__(self, model: nn.Module) -> None:
        self._family = _family(model)
        self._special = _special(model)
        self._towers = _towers(model)
        self.role: dict[int, str | None] = {}
        self.rotary: set[int] = set()
        # (experts per token, experts) of each routed tensor; filled in by who counts them
        self.routed: dict[int, tuple[int, int]] = {}
        self._walk(model, "", None)

    def _walk(self, module: nn.Module, name: str, above: str | None) -> None:
        if id(module) in self.role:
            return
        claim = self._claim(module, name, above)
        words = self._words(module)
        if ROTARY_WORDS.intersection(words) and not _holds_linear(module):
            self.rotary.add(id(module))
        if above == "other!":
            role: str | None = above
        elif above == "moe":
            role = claim if claim == "norm" else "moe"
        elif above == "norm" or (above == "head" and claim not in ("norm", None)):
            role = above
        else:
            role = claim or above
        self.role[id(module)] = role
        mixes = any(_experts_of(child) is not None for child in module.children())
        experts = _experts_of(module)
        for child_name, child in module.named_children():
            # Granite's shared expert stands beside the mixture, not in it
            shared = mixes and child_name == "shared_mlp"
            self._walk(child, child_name, "moe" if shared or child is experts else role)

    def _words(self, module: nn.Module) -> list[str]:
        name = type(module).__name__
        stem = next((name[len(p) :] for p in self._family if name.startswith(p)), name)
        # LFM2's mixer is one word; other convolutions are stems and towers
        return [stem] if stem == SHORT_CONVOLUTION else words_of(stem)

    def _claim(self, module: nn.Module, name: str, above: str | None) -> str | None:
        if id(module) in self._towers:
            return "other!"
        if id(module) in self._special:
            return self._special[id(module)]
        # an attribute's name says something only where no class around it has said more
        by_attribute = ATTRIBUTES.get(name) if above is None else None
        if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            return by_attribute
        words = self._words(module)
        if isinstance(module, nn.Embedding):
            where = POSITION_WORDS.intersection([*name.split("_"), *map(str.lower, words)])
            return "position" if where else "embedding"
        if isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.RMSNorm | nn.BatchNorm1d):
            return "norm"
        if _experts_of(module) is not None:
            roles = {_by_class(child, self._words(child)) for child in module.children()}
            roles |= {ATTRIBUTES.get(name) for name, _ in module.named_children()}
            if not roles & {"attention", "recurrent"}:  # else it is a layer, which holds a mixture
                return "moe"
        if _is_model(module):
            return None
        role = _by_class(module, words)
        if role is not None:
            return role
        if words == ["Output"]:
            return "ffn"  # BERT's second matrix of the feed-forward
        return by_attribute


def _by_class(module: nn.Module, words: list[str]) -> str | None:
    """Return the role that the words of a class's name give."""
    if RECURRENT_WORDS.intersection(words) or type(module).__name__ in RECURRENT_CLASSES:
        return "recurrent"
    for word in reversed(words):
        role = CLASS_WORDS.get(word)
        if role == "norm" and _holds_linear(module):
            continue  # a sublayer with its norm, not a norm
        if role == "embedding" and POSITION_CLASSES.intersection(words):
            return "position"
        if role is not None:
            return role
    return None


def role_name(role: str | None) -> str:
    """Return the key under which a role is counted; unclaimed work and tensors are `other`."""
    return role if role in ROLES else "other"


def _is_model(module: nn.Module) -> bool:
    return hasattr(module, "post_init") and hasattr(module, "config")


def _holds_linear(module: nn.Module) -> bool:
    return any(isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d) for m in module.modules())


def _family(model: nn.Module) -> tuple[str, ...]:
    """Return what a family's class names begin with, longest first: Gemma3Text, Gemma3."""
    found: set[str] = set()
    for module in model.modules():
        if _is_model(module):
            for name in (type(module.config).__name__, type(module).__name__):
                for ending in ("Config", "PreTrainedModel", "ForCausalLM", "Model"):
                    stem = name.removesuffix(ending)
                    found |= {stem, stem.removesuffix("Text"), stem.removesuffix("Decoder")}
    return tuple(sorted((name for name in found if len(name) > 1), key=len, reverse=True))


def told(model: nn.Module, question: str) -> nn.Module | None:
    """Ask a model of transformers about itself; None where it has no answer.

    Its base class raises `NotImplementedError` for embeddings it does not find; a class that looks
    for them in a part that it was built without, `AttributeError`.
    """
    try:
        answer: nn.Module | None = getattr(model, question)()
        return answer
    except (AttributeError, NotImplementedError):
        return None


def _special(model: nn.Module) -> dict[int, str]:
    """Return the roles that transformers itself names: the token tables and the output head."""
    found: dict[int, str] = {}
    for module in model.modules():
        if not _is_model(module):
            continue
        for asked, role in (
            ("get_input_embeddings", "embedding"),
            ("get_output_embeddings", "head"),
        ):
            answer = told(module, asked)
            if isinstance(answer, nn.Module) and (
                role == "head" or isinstance(answer, nn.Embedding)
            ):
                found.setdefault(id(answer), role)
    return found


def _sub_configs(config: object) -> Iterator[object]:
    for name in getattr(config, "sub_configs", {}):
        sub = getattr(config, name, None)
        if sub is not None:
            yield sub
            yield from _sub_configs(sub)


def text_config(config: object) -> object:
    """Return the config of a composite's text model; the config itself for a plain one."""
    for name in ("thinker_config", "text_config"):
        part = getattr(config, name, None)
        if part is not None and not isinstance(part, dict):
            return text_config(part)
    return config


def _towers(model: nn.Module) -> set[int]:
    """Find the models inside a composite that are no text model: vision, audio, codecs."""
    config = getattr(model, "config", None)
    if config is None:
        return set()
    text = {id(config), id(text_config(config))}
    for end in ("text_config", "text_encoder", "encoder", "decoder", "thinker_config"):
        part = getattr(config, end, None)
        text |= {id(part), id(getattr(part, "text_config", None))}
    text |= {id(sub) for sub in _sub_configs(text_config(config))}
    others = {id(sub) for sub in _sub_configs(config)} - text
    return {
        id(module)
        for module in model.modules()
        if _is_model(module) and id(module.config) in others
    }


def _experts_of(module: nn.Module) -> nn.Module | None:
    """Return the experts that a module routes to: its child of that name."""
    for name in EXPERT_LISTS:
        child = dict(module.named_children()).get(name)
        if isinstance(child, nn.ModuleList | nn.ModuleDict) and len(child) > 1:
            return child
        if child is not None and any(p.dim() >= 3 for p in child.parameters(recurse=False)):
            return child
    return None
