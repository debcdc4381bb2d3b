"""A module of transformers', measured: parameters, caches, FLOPs, and its run over a workload."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn

from metacount.measure.alike import Folding, layers_in_lists
from metacount.measure.counter import (
    ROLES,
    Book,
    FlopCounter,
    Forwards,
    MakeCounter,
    MeasuredCache,
    MeasuredParams,
    MeasuredRun,
    measured,
    stored_buffers,
)
from metacount.measure.torch_private import parameters_of, unwatched
from metacount.spec import Workload
from metacount.tensors import FunctionMode, tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.measure.torch_private import OpOverload, OpOverloadPacket


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
        "other": "Conv Pooler Vision Audio Projector Tower Adapter Adapters Hyper Mhc HyperHead",
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
STREAM_SUM = "HyperHead"  # of residual streams, before the head
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
        return [stem] if stem in (SHORT_CONVOLUTION, STREAM_SUM) else words_of(stem)

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
    names: set[str] = set()
    for module in model.modules():
        if _is_model(module):
            for name in (type(module.config).__name__, type(module).__name__):
                for ending in ("Config", "PreTrainedModel", "ForCausalLM", "Model"):
                    stem = name.removesuffix(ending)
                    names |= {stem, stem.removesuffix("Text"), stem.removesuffix("Decoder")}
    return tuple(sorted((name for name in names if len(name) > 1), key=len, reverse=True))


def asked_module(model: nn.Module, question: str) -> nn.Module | None:
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
    roles: dict[int, str] = {}
    for module in model.modules():
        if not _is_model(module):
            continue
        for asked, role in (
            ("get_input_embeddings", "embedding"),
            ("get_output_embeddings", "head"),
        ):
            answer = asked_module(module, asked)
            if isinstance(answer, nn.Module) and (
                role == "head" or isinstance(answer, nn.Embedding)
            ):
                roles.setdefault(id(answer), role)
    return roles


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


aten = torch.ops.aten
ON_META = re.compile(r"(?:\b|_)meta\b", re.IGNORECASE)


class NeedsData(RuntimeError):
    """The code asks for a value that depends on data, and no ordinary run answers it."""


def lacks_data(error: Exception) -> bool:
    """Tell whether torch says that a tensor on meta has no values, or an operator needs them.

    A class that raises `NotImplementedError` for reasons of its own does not speak of meta.

    >>> lacks_data(NotImplementedError("Cannot copy out of meta tensor; no data!"))
    True
    >>> lacks_data(NotImplementedError("the metadata have no such mode"))
    False
    """
    # NotImplementedError is a RuntimeError
    return isinstance(error, RuntimeError) and bool(ON_META.search(str(error)))


class Ordinary:
    """What an ordinary run answers when code asks for a value.

    `any` is False (nothing is padded or special) and `all` is True (the mask is full). Tokens
    choose experts evenly: of a list of E experts all are hit, each by its share of the choices,
    and none of those that compute nothing.
    The largest of any positions is the last one.
    """

    def __init__(self, last_position: int) -> None:
        self._last = last_position
        # the tensor as well, weakly: ids are used again, and nobody is to be kept alive
        self._said: dict[int, tuple[ref[Tensor], int]] = {}
        self._choices = 0
        self._experts = self._turn = 0
        self.assumed: set[str] = set()

    def note(self, func: OpOverload, out: Any) -> None:
        """Remember what a later question may be about."""
        packet = func.overloadpacket
        if packet in (aten.any, aten.all, aten._is_all_true):
            self._said[id(out)] = (ref(out), packet is not aten.any)
        elif packet is aten.max and isinstance(out, Tensor) and not out.is_floating_point():
            self._said[id(out)] = (ref(out), self._last)
        elif packet is aten.topk:
            self._choices = out[0].numel()

    def item(self, asked: Tensor) -> object:
        """Return the value that an ordinary run would have in a tensor of one value."""
        known, answer = self._said.get(id(asked), (None, None))
        if known is None or known() is not asked:
            raise NeedsData(f"the code asks for the value of a {asked.dtype} computed from data")
        self.assumed.add("assumed full sequences without padding")
        return answer

    def nonzero(
        self, asked: Tensor, n_experts: int | torch.SymInt | None, n_zero: int | torch.SymInt = 0
    ) -> Tensor:
        """Return the indices of what is not zero:
        all experts of a list, or one expert's share of choices.

        A list one longer than the experts has a last place for no expert, which nothing chooses.
        Nor does anything choose one of `n_zero` experts behind the others, which compute nothing:
        what runs is the most that tokens can ask for.
        """
        if asked.dim() == 1 and n_experts and asked.shape[0] - n_experts in (n_zero, 0, 1):
            self._experts, self._turn = self.hit(n_experts), 0
            none = " that compute, none over zero experts" if n_zero else ""
            self.assumed.add(f"assumed tokens spread evenly over experts{none}")
            with unwatched():
                # real numbers: the code makes names and places of them
                return torch.arange(self._experts, device="cpu")[:, None]
        if asked.dim() != 2 or not self._experts:
            raise NeedsData(f"the code asks which of {tuple(asked.shape)} values are not zero")
        share = self._share(asked.numel(), self._experts)[self._turn % self._experts]
        self._turn += 1
        return torch.empty(share, 2, dtype=torch.long, device="meta")

    def hit(self, n_experts: int | torch.SymInt) -> int:
        """Count the experts of a list that tokens choose."""
        return int(n_experts)

    def sizes(self, asked: Tensor) -> list[int]:
        """List the numbers of tokens per expert."""
        if asked.dim() != 1 or not self._choices:
            raise NeedsData(f"the code asks for {tuple(asked.shape)} values computed from data")
        self.assumed.add("assumed tokens spread evenly over experts")
        return self._share(self._choices, asked.shape[0])

    @staticmethod
    def _share(choices: int, experts: int) -> list[int]:
        each, rest = choices // experts, choices % experts
        return [each + (i < rest) for i in range(experts)]


class ListQuestions(FunctionMode):
    """Questions that never reach the dispatcher: `tolist` of a tensor without data."""

    def __init__(self, ordinary: Ordinary) -> None:
        super().__init__()
        self._ordinary = ordinary

    def run_function(
        self, func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Answer `tolist` of a tensor on meta, or let torch answer."""
        if func is Tensor.tolist and args[0].is_meta:
            return self._ordinary.sizes(args[0])
        return func(*args, **kwargs)


@contextmanager
def silent() -> Iterator[None]:
    """Keep logs and warnings of an import back; what it raises is raised.

    transformers imports optional libraries where they are installed; what these have to say, of
    kernels that this machine cannot load, is of no count.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Let somebody else's code run without its log and its warnings; what it raises is raised.

    Advice on speed, training and deprecation is meant. Whatever stands in the way of a count is an
    exception, and reaches the caller.
    """
    from transformers.utils import logging as theirs

    # asking transformers, not its logger: the first answer sets the logger up, and a level that
    # was read before that and put back later would undo it
    level = theirs.get_verbosity()
    theirs.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        theirs.set_verbosity(level)


WHOLE: Any = (int, torch.SymInt)  # a number, or the symbol that stands for one

# Where a module says how many experts there are, and how many of them a token meets.
EXPERT_COUNTS = (
    "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "n_experts",
    "num_total_experts",
)  # fmt: skip
CHOSEN_COUNTS = (
    "top_k", "topk", "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk",
    "num_selected_experts", "top_k_experts", "k", "moe_k",
)  # fmt: skip
# What a model says itself of the tables that tokens look up: one, or each layer's own beside it.
TABLES = ("get_input_embeddings", "get_per_layer_input_embeddings")
# Routers whose number of chosen experts is in their name and nowhere else.
CHOSEN_BY_CLASS = {"SwitchTransformersTop1Router": 1, "NllbMoeTop2Router": 2}


def distinct_tensors(root: nn.Module, roles: Roles) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Yield (full name, owner, tensor), every tensor once; a tied one belongs to the embedding."""
    by_id: dict[int, tuple[str, nn.Module, Tensor]] = {}
    for path, module in root.named_modules():
        for name, tensor in parameters_of(module).items():
            if id(tensor) in by_id and roles.role[id(module)] != "embedding":
                continue
            by_id[id(tensor)] = (f"{path}.{name}" if path else name, module, tensor)
    yield from by_id.values()


def measure_any_params(model: nn.Module, roles: Roles | None = None) -> MeasuredParams:
    """Count every distinct parameter and persistent buffer of transformers' `model`."""
    roles = Roles(model) if roles is None else roles
    routed, unknown = routing(model)
    by_role, active = dict.fromkeys(ROLES, 0), dict.fromkeys(ROLES, 0)
    unclaimed: list[str] = []
    text, of_text = _text_tensors(model), [0, 0]
    for path, owner, tensor in distinct_tensors(model, roles):
        role = roles.role[id(owner)]
        if role is None:
            unclaimed.append(f"{path} {tuple(tensor.shape)}")
        key, values = role_name(role), tensor.numel()
        by_role[key] += values
        chosen, n_experts = routed.get(id(tensor), (1, 1))
        active[key] += values // n_experts * chosen
        if id(tensor) in text:
            of_text = [of_text[0] + values, of_text[1] + values // n_experts * chosen]
    table = _lone_token_table(model)
    return MeasuredParams(
        by_role=by_role,
        active_by_role=None if unknown else active,
        no_embed=None if unknown else sum(active.values()) - table,
        buffers=stored_buffers(model),
        unclaimed=tuple(unclaimed),
        unknown_routing=tuple(unknown),
        text_params=of_text[0],
        text_active_params=None if unknown else of_text[1],
    )


def _lone_token_table(model: nn.Module) -> int:
    """Count the values of the tables that tokens look up and that no output head shares."""
    heads = {
        id(p)
        for module in model.modules()
        if hasattr(module, "get_output_embeddings")
        for p in getattr(_asked(module, "get_output_embeddings"), "_parameters", {}).values()
    }
    tables: dict[int, int] = {}
    for module in model.modules():
        for question in TABLES:
            table = getattr(_asked(module, question), "weight", None)
            if isinstance(table, nn.Parameter) and table.dim() == 2 and id(table) not in heads:
                tables[id(table)] = table.numel()
    return sum(tables.values())


def _asked(module: nn.Module, question: str) -> nn.Module | None:
    return asked_module(module, question) if hasattr(module, "config") else None


def _text_tensors(model: nn.Module) -> set[int]:
    """Return the ids of the text model's parameters, its head's included; all of a plain one."""
    config = getattr(model, "config", None)
    text = text_config(config)
    parts = [
        module
        for module in model.modules()
        if getattr(module, "config", None) is text and hasattr(module, "post_init")
    ]
    head = _asked(model, "get_output_embeddings")
    if text is config:
        parts = [model]
    elif head is not None:
        parts.append(head)
    return {id(p) for module in parts for p in module.parameters()}


def routing(model: nn.Module) -> tuple[dict[int, tuple[int, int]], list[str]]:
    """Find (experts per token, experts) of each routed tensor, by its id,
    and the modules whose k is unknown.
    """
    routed: dict[int, tuple[int, int]] = {}
    unknown: list[str] = []
    parents = {id(child): module for module in model.modules() for child in module.children()}
    for path, module in model.named_modules():
        listed, fused = _listed(path, module), _fused(path, module)
        if not listed and fused is None:
            continue
        chosen = _chosen(module, parents, model)
        if chosen is None:
            unknown.append(path)
        elif fused is not None:
            for tensor in fused[1]:
                # rows of experts one after the other, or stacked: each its own number of them
                n_experts = tensor.shape[0] if tensor.dim() > 2 else fused[0]
                routed[id(tensor)] = (min(chosen, n_experts), n_experts)
        else:
            # experts of one size: which of them are met does not matter
            for i, expert in enumerate(listed):
                for tensor in expert.parameters():
                    routed[id(tensor)] = (int(i < chosen), 1)
    return routed, unknown


def _listed(path: str, module: nn.Module) -> list[nn.Module]:
    """List the experts in a list of modules; none where they differ in size."""
    if path.rpartition(".")[2] != "experts" or not isinstance(
        module, nn.ModuleList | nn.ModuleDict
    ):
        return []
    experts = [m for m in module.children() if any(True for _ in m.parameters())]
    sizes = [sum(p.numel() for p in expert.parameters()) for expert in experts]
    return experts if len(experts) > 1 and all(size == sizes[0] for size in sizes) else []


def _fused(path: str, module: nn.Module) -> tuple[int, list[Tensor]] | None:
    """Return how many experts a module holds as one, and their tensors; None if none."""
    own = [p for p in parameters_of(module).values() if p.numel()]
    numbers = [getattr(module, name, None) for name in EXPERT_COUNTS]
    counts: list[int] = [n for n in numbers if isinstance(n, WHOLE) and n > 1]
    stacked = [p for p in own if p.dim() >= 3]
    named = path.rpartition(".")[2] == "experts"
    if stacked and (named or (counts and any(p.shape[0] == counts[0] for p in stacked))):
        n_experts = counts[0] if counts else stacked[0].shape[0]
        # a bias [E, n] goes with its matrix; anything else of the module is used whole
        return n_experts, [p for p in own if p.dim() >= 3 or p.shape[0] == n_experts]
    if counts and type(module).__name__.endswith("ExpertGLU"):
        # the experts' rows one after the other (DBRX)
        return counts[0], [p for p in own if p.shape[0] % counts[0] == 0]
    return None


def _chosen(module: nn.Module, parents: dict[int, nn.Module], model: nn.Module) -> Any:
    """Find the experts per token: of the module, its holder, a router beside it, the config."""
    asked: list[nn.Module] = [module]
    holder = parents.get(id(module))
    for _ in range(2):
        if holder is None or hasattr(holder, "post_init"):
            break
        asked += [holder, *(c for c in holder.children() if c is not module)]
        holder = parents.get(id(holder))
    for tensor in asked:
        if type(tensor).__name__ in CHOSEN_BY_CLASS:
            return CHOSEN_BY_CLASS[type(tensor).__name__]
        for name in CHOSEN_COUNTS:
            value = getattr(tensor, name, None)
            if isinstance(value, WHOLE) and not isinstance(value, bool) and value > 0:
                return value
    for config in (getattr(module, "config", None), text_config(model.config)):
        for name in CHOSEN_COUNTS:
            value = getattr(config, name, None)
            if isinstance(value, WHOLE) and not isinstance(value, bool) and value > 0:
                return value
    return None


# Attributes of a cache that hold keys and values of tokens, or what entries of them are made of;
# anything else is recurrent state.
TOKEN_TENSORS = frozenset((
    "keys", "values", "indexer_keys", "idx_keys", "compressed_kv", "mems", "buckets_cache",
    "states_cache", "buffer_kv", "buffer_gate", "overlap_kv", "overlap_gate",
))  # fmt: skip
CROSS = "cross_attention_cache"
CONTAINERS = frozenset(["layers", "self_attention_cache", CROSS])


def measure_cache(cache: object) -> MeasuredCache:
    """Count the bytes of every tensor that a cache holds, once each; numbers are no state."""
    kv = cross = state = heads = 0
    by_name: dict[str, int] = {}
    for path, tensor in _held(cache, (), set()):
        size = tensor_bytes([tensor])
        names = [name for name in path if not name.isdecimal() and name not in CONTAINERS]
        name = names[0] if names else "state"
        by_name[name] = by_name.get(name, 0) + size
        if name == "keys" and tensor.dim() == 4:
            heads = max(heads, tensor.shape[1])
        if name in TOKEN_TENSORS and CROSS in path:
            cross += size
        elif name in TOKEN_TENSORS:
            kv += size
        else:
            state += size
    return MeasuredCache(
        kv_bytes=kv + cross,
        cross_kv_bytes=cross,
        state_bytes=state,
        by_name=by_name,
        key_heads=heads,
    )


def _is_number(tensor: Tensor) -> bool:
    """Tell whether a tensor is a single number; of whole numbers, also in an axis (xLSTM's)."""
    counts = tensor.numel() == 1 and not tensor.is_floating_point()
    return tensor.dim() == 0 or counts


def _held(
    value: object, path: tuple[str, ...], seen: set[int]
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    if id(value) in seen:
        return
    if isinstance(value, Tensor):
        seen.add(id(value))
        if not _is_number(value):
            yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _held(item, (*path, str(key)), seen)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _held(item, (*path, str(index)), seen)
    elif type(value).__module__.startswith("transformers.") and hasattr(value, "__dict__"):
        seen.add(id(value))
        if not hasattr(value, "to_diff_dict"):  # a config holds no cache
            yield from _held(vars(value), path, seen)


aten = torch.ops.aten


class ClassBook(Book):
    """Roles by class, and the answers of an ordinary run to questions of data."""

    def __init__(self, roles: Roles, ordinary: Ordinary, folding: Folding | None = None) -> None:
        self.roles, self.ordinary = roles, ordinary
        self._folding = folding or Folding(())

    def answer(self, func: OpOverload, args: tuple[Any, ...], path: list[nn.Module]) -> object:
        """Answer as an ordinary run would where the last module of `path` asks about data."""
        packet = func.overloadpacket
        if packet is aten._local_scalar_dense and args[0].is_meta:
            return self.ordinary.item(args[0])
        if packet is aten.nonzero and args[0].is_meta:
            return self.ordinary.nonzero(args[0], *_n_experts(path))
        return NotImplemented

    def note(self, func: OpOverload, out: object) -> None:
        """Remember what a later question may be about."""
        self.ordinary.note(func, out)

    def _owner(self, path: list[nn.Module]) -> int:
        # a module that was made while the model ran (BigBird's, for a short input) is its holder's
        return next((id(m) for m in reversed(path) if id(m) in self.roles.role), 0)

    def role(self, path: list[nn.Module]) -> str | None:
        """Return the role of the innermost module that has one."""
        owner = self._owner(path)
        rotary = owner in self.roles.rotary
        return "position" if rotary else role_name(self.roles.role.get(owner))

    def counts(self, path: list[nn.Module]) -> bool:
        """Tell whether what runs belongs to the figures: rotary tables are in no textbook's."""
        return self._owner(path) not in self.roles.rotary

    def idle(
        self, packet: OpOverloadPacket, args: tuple[Any, ...], flops: int, path: list[nn.Module]
    ) -> int:
        """Return what idle experts cost: all tokens go through them (Llama 4)."""
        routed = self.roles.routed.get(id(args[1])) if packet is aten.bmm else None
        if routed is None or self.role(path) != "moe":
            return 0
        chosen, n_experts = routed
        return flops - flops // n_experts * chosen

    @contextmanager
    def running(self, counter: FlopCounter, model: nn.Module) -> Iterator[None]:
        """Run on meta, without gradients, alike layers once; answer what reaches no dispatcher."""
        with (
            torch.no_grad(),
            torch.device("meta"),
            ListQuestions(self.ordinary),
            self._folding.counting(counter),
        ):
            yield


def _n_experts(path: list[nn.Module]) -> tuple[int | torch.SymInt | None, int | torch.SymInt]:
    """Return the numbers of experts and of zero experts that a module on the path says."""
    for module in reversed(path[-3:]):
        for name in ("num_routed_experts", "num_experts", "moe_num_experts"):
            value = getattr(module, name, None)
            if isinstance(value, int | torch.SymInt):
                return value, getattr(module, "zero_expert_num", 0)
    return None, 0


# Under which name an output returns its cache, and takes it back.
CACHES = ("past_key_values", "cache_params", "state", "mems", "past_buckets_states")
SHORT = (torch.bfloat16, torch.float16)

T = TypeVar("T")
TAKES_NONE = "its forward takes no cache"

# Models with an input of their own: ids in several rows per sequence; all tokens at each step;
# a cache that is changed but not returned.
ROWS = {"MusicgenForCausalLM": "num_codebooks", "MusicgenMelodyForCausalLM": "num_codebooks"}
ALL_TOKENS = frozenset(["CpmAntForCausalLM"])
KEEPS_GIVEN = frozenset(["RecurrentGemmaForCausalLM"])


def kind_of(model: Any) -> str:
    """Name how the model is run: whether it has an encoder, whether it writes token after token."""
    takes = inspect.signature(model.forward).parameters
    if "decoder_input_ids" in takes and getattr(model.config, "is_encoder_decoder", False):
        return "encoder-decoder"
    return "decoder" if model.can_generate() else "encoder"


def measure_any_forward(
    model: nn.Module, workload: Workload, roles: Roles | None = None, *, fold: bool = True
) -> MeasuredRun:
    """Run transformers' `model` (on meta) over `workload` and measure it.

    With `fold`, layers proven alike run once. Raises `UncountedOp` and `NeedsData`, and whatever
    the model raises when it cannot run.
    """
    run, note = as_it_runs(model, lambda: measured(Runner(model, workload, roles, fold=fold)))
    if note:
        run = run.halved()
    return dataclasses.replace(run, assumed=(*run.assumed, *note))


WIDENED = "run in float32: its code does not run in 16 bits"


def as_it_runs(model: nn.Module, measure: Callable[[], T]) -> tuple[T, tuple[str, ...]]:
    """Run `measure`, with the model in float32 where its code fails in 16 bits; say so then.

    A run in float32 is right for FLOPs, and for bytes of caches once they are halved: for no other.
    """
    tensors = (*model.parameters(), *model.buffers())
    dtypes = [t.dtype for t in tensors]

    def attempt() -> T | RuntimeError:
        try:
            return measure()
        except NeedsData:
            raise
        except RuntimeError as error:
            return error

    result = attempt()
    if dtypes != [t.dtype for t in tensors]:  # Switch's router widens itself where it first runs
        result = attempt()
    if not isinstance(result, RuntimeError):
        return result, ()
    short = [t for t in tensors if t.dtype in SHORT]
    before = [t.dtype for t in short]
    for tensor in short:
        tensor.data = tensor.data.float()
    try:
        widened = attempt() if short else result
    finally:
        for tensor, dtype in zip(short, before, strict=True):
            tensor.data = tensor.data.to(dtype)
    if isinstance(widened, RuntimeError):
        raise result
    return widened, (WIDENED,)


class Runner(Forwards):
    """Forwards of a model of transformers'; layers proven alike run once."""

    decodes_first = False

    def __init__(
        self, model: Any, workload: Any, roles: Roles | None = None, *, fold: bool = True
    ) -> None:
        super().__init__(model, workload)
        self.kind, self._roles = kind_of(model), roles or Roles(model)
        self._roles.routed = routing(model)[0]
        self.folding = Folding(layers_in_lists(model) if fold else ())
        self._takes = inspect.signature(model.forward).parameters
        self._memory: Tensor | None = None
        self.ordinary: Callable[[int], Ordinary] = Ordinary

    def prefill(self, counter: MakeCounter | None = None) -> tuple[FlopCounter, Any]:
        """Run a forward over the whole workload; without a cache, and `no_cache` says why, where
        the model fails with its own.
        """
        try:
            counted, cache = super().prefill(counter)
        except (AttributeError, IndexError, ValueError, TypeError) as error:
            if self.kind == "encoder":
                raise
            self.no_cache = f"it fails with a cache: {type(error).__name__}: {str(error)[:120]}"
            counted, cache = super().prefill(counter)
        return counted, None if self.no_cache or self.kind == "encoder" else cache

    def measure_cache(self, cache: Any) -> MeasuredCache:
        """Count the bytes of a cache by what they are."""
        return measure_cache(cache)

    def why_none(self) -> str:
        """Say why a forward gave no cache; empty for an encoder, which keeps none."""
        if self.no_cache or self.kind == "encoder":
            return self.no_cache
        return "it returns none" if any(name in self._takes for name in CACHES) else TAKES_NONE

    def forward(
        self, length: int, *, cache: Any = None, counter: MakeCounter | None = None
    ) -> tuple[FlopCounter, Any]:
        """Run a forward over `length` tokens, perhaps from a cache; return counter and cache."""
        seen = 0 if cache is None else self.workload.seq_len - length
        book = ClassBook(self._roles, self.ordinary(seen + length - 1), self.folding)
        counting, self.assumed = (counter or self.counter)(book), book.ordinary.assumed
        given = self.inputs(length, seen, cache)
        with quiet(), counting.watching(self.model):
            out = self.model(**given)
        self._memory = getattr(out, "encoder_last_hidden_state", self._memory)
        for name in CACHES:
            after = getattr(out, name, None)
            if after is not None:
                return counting, after
        # some change the cache they get and do not return it
        own = given.get("past_key_values")
        return counting, own if any(True for _ in _held(own, (), set())) else None

    def inputs(self, length: int, seen: int = 0, cache: object = None) -> dict[str, Any]:
        """Build the inputs of a forward over `length` tokens, `seen` before them in a cache."""
        name, takes = type(self.model).__name__, self._takes
        rows = self.workload.batch_size
        if name in ROWS:
            rows *= getattr(self.model.config, ROWS[name])
        if name in ALL_TOKENS:
            length += seen
        ids = torch.empty(rows, length, dtype=torch.long, device="meta")
        given: dict[str, Any] = {"return_dict": True} if "return_dict" in takes else {}
        if self.kind == "encoder-decoder":
            given["decoder_input_ids"] = ids
            if cache is None:
                source = self.workload.encoder_len
                given["input_ids"] = torch.empty(rows, source, dtype=torch.long, device="meta")
            else:
                from transformers.modeling_outputs import MoEModelOutput

                # the widest of the encoders' outputs: every model finds in it what it looks for
                given["encoder_outputs"] = MoEModelOutput(last_hidden_state=self._memory)
        else:
            given["input_ids"] = ids
        if "use_cache" in takes and self.kind != "encoder":
            given["use_cache"] = not self.no_cache
        if cache is not None:
            given[next(n for n in CACHES if n in takes)] = cache
        elif name in KEEPS_GIVEN:
            from transformers.cache_utils import DynamicCache

            given["past_key_values"] = DynamicCache(config=self.model.config)
        return given
