"""A GGUF file as the config of transformers that means the same model.

Every key of the architecture is read or named in an error, and so is every tensor that the
architecture does not have: what is not understood may change the model.
"""

from __future__ import annotations

from metacount.errors import InputError, SpecError, nearest, shown
from metacount.formats.described import Described
from metacount.formats.gguf_header import Header, read_header
from metacount.frozen import frozen
from metacount.huggingface.config.keys import Keys

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

ARCHITECTURE = "general.architecture"
# What describes the file, its words, and how it was made.
BESIDE = ("general.", "tokenizer.", "quantize.")
QKV = frozenset(["attn_q", "attn_k", "attn_v"])
ATTENTION = QKV | {"attn_output"}
FFN = frozenset(["ffn_gate", "ffn_up", "ffn_down"])

# Keys after the architecture's name -> transformers' names, where they are the same everywhere.
SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
}
EXPERTS = {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}


@frozen
class Architecture:
    """What transformers calls one of llama.cpp's architectures, and what it has beside the sizes.

    `biased`: tensors with a bias. `sizes` and `numbers`: further keys that must be there, by
    transformers' names.
    `fixed`: what the architecture takes for granted, `said` in words where a file could differ.
    """

    model_type: str
    biased: frozenset[str] = frozenset()
    sizes: tuple[tuple[str, str], ...] = ()
    numbers: tuple[tuple[str, str], ...] = ()
    fixed: tuple[tuple[str, object], ...] = ()
    said: str = ""
    tied: bool = False  # the head is the embedding, whatever the file stores


WINDOW = (("attention.sliding_window", "sliding_window"),)
ARCHITECTURES = {
    "llama": Architecture(model_type="llama"),
    "qwen2": Architecture(model_type="qwen2", biased=QKV),
    "qwen3": Architecture(model_type="qwen3"),
    "qwen3moe": Architecture(
        model_type="qwen3_moe",
        sizes=(("expert_feed_forward_length", "moe_intermediate_size"),),
        fixed=(("norm_topk_prob", True),),
        said="the weights of the chosen experts are divided by their sum, as llama.cpp has it",
    ),
    "phi3": Architecture(model_type="phi3"),
    "gemma": Architecture(model_type="gemma", tied=True),
    "gemma2": Architecture(
        model_type="gemma2",
        sizes=WINDOW,
        numbers=(
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ),
        said="every second layer has a window, as llama.cpp has it",
        tied=True,
    ),
    "gemma3": Architecture(
        model_type="gemma3_text",
        sizes=WINDOW,
        said="five layers of six have a window, as llama.cpp has it",
        tied=True,
    ),
}


def described(path: str) -> Described:
    """Read what a GGUF file says as a config."""
    header = read_header(path)
    name = header.keys.get(ARCHITECTURE)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        remedy = nearest(str(name), ARCHITECTURES, f"those that are: {', '.join(ARCHITECTURES)}")
        raise InputError(
            f"{shown(path)}: {ARCHITECTURE} {shown(repr(name))} is not one that is read; {remedy}"
        )
    return _Reading(path, header, name).described()


class _Reading:
    """One file's keys under their whole names, and what they make of a config."""

    def __init__(self, path: str, header: Header, name: str) -> None:
        self.path, self.header, self.name = path, header, name
        self.it = ARCHITECTURES[name]
        for key in header.keys:
            if not key.startswith((f"{name}.", *BESIDE)):
                rule, remedy = (
                    f"is not a key of the architecture {name}",
                    "remove it if it changes nothing",
                )
                raise SpecError(shown(key), rule, header.keys[key], remedy)
        own = {key: value for key, value in header.keys.items() if key.startswith(f"{name}.")}
        self.keys = Keys(own, {}, {}, "head")
        self.names: dict[str, str] = {}
        self.notes: list[str] = []
        self.shapes = {tensor.name: tensor.shape for tensor in header.tensors}

    def described(self) -> Described:
        # a class's own number of a padding token may be beyond a small vocabulary
        config: Json = {"model_type": self.it.model_type, "pad_token_id": None}
        for key, theirs in SIZES.items():
            config[theirs] = self.size(key, theirs)
        config |= self.widths(config)
        config |= dict(self.it.fixed)
        config |= {theirs: self.size(key, theirs) for key, theirs in self.it.sizes}
        for key, theirs in self.it.numbers:
            config[theirs] = self.keys.number(self.named(key, theirs))
        eps = self.named("attention.layer_norm_rms_epsilon", "rms_norm_eps")
        config["rms_norm_eps"] = self.keys.number(eps)
        config |= self.rope(config["head_dim"])
        if self.name in ("gemma2", "gemma3"):
            config["query_pre_attn_scalar"] = config["head_dim"]
        config["vocab_size"] = self.vocab_size(config["hidden_size"])
        config |= self.by_tensors(config["num_hidden_layers"])
        if self.has("context_length"):
            config["max_position_embeddings"] = self.size("context_length", "")
        self.keys.finish((), kind="decoder")
        kinds = ", ".join(dict.fromkeys(tensor.dtype for tensor in self.header.tensors))
        said = (
            f"GGUF, architecture {self.name}, {len(self.shapes)} tensors in {kinds}; counted "
            "are values, however they are stored"
        )
        notes = (said, *([self.it.said] if self.it.said else []), *self.notes)
        if self.name == "llama" and "num_local_experts" in config:
            config["model_type"] = "mixtral"
        n_bytes = sum(tensor.n_bytes for tensor in self.header.tensors)
        stored = {"quant_method": "gguf", "n_bytes": n_bytes, "types": kinds}
        read: Json = {"config": config, "names": self.names, "notes": notes}
        return Described(**read, gguf=self.path, stored=stored)

    def wrong(
        self, key: str, rule: str, value: object, remedy: str = "convert it again"
    ) -> SpecError:
        return SpecError(f"{self.name}.{key}", rule, value, remedy)

    def has(self, key: str) -> bool:
        return f"{self.name}.{key}" in self.keys.data

    def named(self, key: str, theirs: str) -> str:
        """Return the whole name of a key that must be there."""
        whole = f"{self.name}.{key}"
        if whole not in self.keys.data:
            raise self.wrong(key, "is missing", None)
        self.names[theirs] = whole
        return whole

    def size(self, key: str, theirs: str) -> int:
        return self.keys.size(self.named(key, theirs))

    def widths(self, config: Json) -> Json:
        """Read the heads, their width, and the feed-forward's."""
        found: Json = {}
        d_model, n_heads = config["hidden_size"], config["num_attention_heads"]
        groups = "attention.head_count_kv"
        found["num_key_value_heads"] = (
            self.size(groups, "num_key_value_heads") if self.has(groups) else n_heads
        )
        lengths = {
            self.size(f"attention.{one}_length", "head_dim")
            for one in ("key", "value")
            if self.has(f"attention.{one}_length")
        }
        if len(lengths) > 1:
            rule = "differs from key_length, which is not so here"
            raise self.wrong("attention.value_length", rule, min(lengths))
        if not lengths and d_model % n_heads:
            rule = f"must divide embedding_length: {d_model} % {n_heads} = {d_model % n_heads}"
            raise self.wrong("attention.head_count", rule, n_heads, "give attention.key_length")
        found["head_dim"] = lengths.pop() if lengths else d_model // n_heads
        found["intermediate_size"] = self.size("feed_forward_length", "intermediate_size")
        if self.has("expert_count") and self.keys.data[f"{self.name}.expert_count"] != 0:
            found |= {theirs: self.size(key, theirs) for key, theirs in EXPERTS.items()}
        else:
            for key in EXPERTS:
                self.keys.fixed(f"{self.name}.{key}", 0)
        return found

    def rope(self, head_dim: int) -> Json:
        """Read the base of RoPE, its share of the head, and its scaling."""
        found: Json = {}
        if self.has("rope.freq_base"):
            found["rope_theta"] = self.keys.number(self.named("rope.freq_base", "rope_theta"))
        if self.has("rope.dimension_count"):
            turned = self.size("rope.dimension_count", "partial_rotary_factor")
            if turned != head_dim and self.name != "phi3":
                rule = f"must be the heads' width {head_dim} here"
                raise self.wrong("rope.dimension_count", rule, turned)
            if self.name == "phi3":
                found["partial_rotary_factor"] = turned / head_dim
        kind = self.keys.given(f"{self.name}.rope.scaling.type")
        details = {
            key: value
            for key, value in self.keys.data.items()
            if key.startswith(f"{self.name}.rope.scaling.")
        }
        self.keys.read |= set(details)
        if kind == "linear":
            factor = self.keys.number(self.named("rope.scaling.factor", "factor"))
            found["rope_scaling"] = {"rope_type": "linear", "factor": factor}
        elif details and kind != "none":
            self.notes.append("RoPE's scaling is not taken over: no count depends on it")
        if self.shapes.keys() & {"rope_freqs.weight", "rope_factors_long.weight"}:
            self.notes.append("RoPE's factors are a tensor of the file: no count depends on them")
        window = f"{self.name}.attention.sliding_window"
        if self.name == "phi3" and self.keys.given(window):
            found["sliding_window"] = self.size("attention.sliding_window", "sliding_window")
        return found

    def vocab_size(self, d_model: int) -> int:
        """Count the rows of the embedding; the key, where there is one, must say the same."""
        shape = self.shapes.get("token_embd.weight")
        if shape is None or len(shape) != 2 or shape[1] != d_model:
            rule = f"must be there in [vocab_size, embedding_length = {d_model}]"
            raise SpecError("token_embd.weight", rule, shape, "convert the file again")
        if self.has("vocab_size") and self.size("vocab_size", "vocab_size") != shape[0]:
            rule = f"differs from the {shape[0]} rows of token_embd.weight"
            raise self.wrong("vocab_size", rule, self.keys.data[f"{self.name}.vocab_size"])
        return shape[0]

    def by_tensors(self, n_layers: int) -> Json:
        """Read what only the tensors say: a head of its own, biases.
        Every one must have its place.
        """
        blocks, biased, known = set(), set(), _tensor_names(self.name)
        for name in self.shapes:
            stem, _, leaf = name.rpartition(".")
            parts = stem.split(".")
            in_block = len(parts) == 3 and parts[0] == "blk" and parts[1].isdecimal()
            if leaf not in ("weight", "bias") or (parts[2] if in_block else stem) not in known:
                rule = f"is a tensor that the architecture {self.name} does not have here"
                shape = list(self.shapes[name])
                raise SpecError(shown(name), rule, shape, "it may change the model")
            if in_block:
                blocks.add(parts[1])
            if leaf == "bias":
                biased.add(parts[-1])
        if blocks != {str(n) for n in range(n_layers)}:
            rule = f"must be the {len(blocks)} blocks that have tensors"
            raise self.wrong("block_count", rule, n_layers)
        found: Json = {}
        if not self.it.tied:
            found["tie_word_embeddings"] = "output.weight" not in self.shapes
        wanted = set(self.it.biased)
        if self.name == "llama":
            groups = {"attention_bias": ATTENTION, "mlp_bias": FFN}
            found |= {name: True for name, group in groups.items() if biased >= group}
            wanted |= {one for group in (ATTENTION, FFN) if biased >= group for one in group}
        if biased != wanted:
            odd = ", ".join(sorted(biased ^ wanted))
            rule = f"{'has' if biased - wanted else 'lacks'} a bias, unlike {self.it.model_type}"
            raise SpecError(shown(odd), rule, sorted(biased), "convert it again")
        return found


def _tensor_names(name: str) -> set[str]:
    """Name the tensors of an architecture, without the numbers of blocks."""
    from gguf.constants import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES

    kind = next(kind for kind, known in MODEL_ARCH_NAMES.items() if known == name)
    return {TENSOR_NAMES[one].rpartition("{bid}.")[2] for one in MODEL_TENSORS[kind]}
