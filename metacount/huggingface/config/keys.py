"""Reading a config.json: every key is read, or known not to matter, or an error that names it."""

from __future__ import annotations

from metacount.errors import SpecError, nearest, shown_name, shown_value
from metacount.spec.field import MAX_LAYERS

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any, NoReturn, TypeGuard

    from metacount.files import Json
    from metacount.spec import ModelSpec


MAX_SIZE = 2**31  # of any whole number; ModelSpec has narrower limits of its own

# What transformers calls them -> what the spec calls them.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    # one function under five names; their constants differ in the tenth digit at most
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
    "sigmoid": "sigmoid",
    "linear": "identity",
}
QUICK_GELU_BETA = 1.702  # quick_gelu(x) = x·sigmoid(1.702·x): Swish-β


def words(text: str) -> frozenset[str]:
    """Split `text` into its words."""
    return frozenset(text.split())


# Known not to change a count or the structure, in whatever family they stand.
HARMLESS = (
    # where the file comes from and how it is run
    words(
        "architectures model_type _name_or_path name_or_path transformers_version _commit_hash "
        "torch_dtype dtype use_cache return_dict output_attentions output_hidden_states "
        "torchscript use_bfloat16 tf_legacy_loss problem_type num_labels id2label label2id "
        "finetuning_task task_specific_params tokenizer_class prefix chunk_size_feed_forward "
        "gradient_checkpointing _attn_implementation attn_implementation "
        "_attn_implementation_autoset _attn_implementation_internal _experts_implementation "
        "experts_implementation _experts_implementation_internal auto_map custom_pipelines "
        "quantization_config pretraining_tp init_device onnx_export ignore_keys_at_rope_validation "
        "is_llama_config unsloth_fixed unsloth_version transformers.js_config use_flash_attn "
        "mamba_ssm_dtype"
    )
    # training
    | words(
        "initializer_range init_std initializer_factor attention_dropout hidden_dropout dropout "
        "activation_dropout classifier_dropout embedding_dropout residual_dropout resid_dropout "
        "embed_dropout embd_pdrop resid_pdrop attn_pdrop emb_pdrop hidden_dropout_prob "
        "attention_probs_dropout_prob dropout_rate mlp_dropout layerdrop encoder_layerdrop "
        "decoder_layerdrop output_router_logits router_aux_loss_coef router_z_loss_coef "
        "router_jitter_noise input_jitter_noise aux_loss_alpha seq_aux initializer_cutoff_factor"
    )
    # tokens by number
    | words(
        "bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id "
        "unk_token_id decoder_start_token_id"
    )
    # generation, kept in old configs
    | words(
        "assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens "
        "diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size "
        "encoder_repetition_penalty epsilon_cutoff eta_cutoff exponential_decay_length_penalty "
        "forced_bos_token_id forced_eos_token_id length_penalty max_length min_length "
        "no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups "
        "num_beams num_return_sequences output_scores remove_invalid_values repetition_penalty "
        "return_dict_in_generate suppress_tokens target_lookbehind temperature top_k top_p "
        "typical_p"
    )
    # no table has this many rows unless its family reads it
    | words("max_position_embeddings")
)

# Keys of any config that change the model unless they have one of these values.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (False, None),
    "cross_attention_hidden_size": (None,),
    "tie_encoder_decoder": (False, None),
    "pruned_heads": ({}, None),
    "is_decoder": (False, None),
}


class Unmapped(SpecError):
    """Valid perhaps, but not expressible as a spec: transformers' own module may still tell."""


class UnmappedType(Unmapped):
    """A model type that has no mapping."""


class UnmappedClass(Unmapped):
    """A model class that has no spec, such as a classifier."""


class UnmappedKey(Unmapped):
    """A key, or its value, that may change the model and has no place in a spec."""


class Keys:
    """The keys of one config. A key that is left out has its family's default."""

    def __init__(self, data: Json, defaults: Json, aliases: dict[str, str], end: str) -> None:
        self.data: Json = {}
        self.spelled: dict[str, str] = {}  # our name of a key -> the name it has in the file
        for key, value in data.items():
            name = aliases.get(key, key)
            if name in self.data and self.data[name] != value:
                rule = f"is the same as {self.spelled[name]}, which has another value"
                raise SpecError(key, rule, value, "remove one of them")
            if name not in self.data or key == name:
                self.spelled[name] = key
            self.data[name] = value
        self.defaults, self.aliases, self.end = defaults, aliases, end
        self.read: set[str] = set()
        self.notes: list[str] = []
        self.refused: list[str] = []  # why transformers' code would not take what was read
        self.different: list[str] = []
        self.unread: Json = {}  # what no row reads, though it may say nothing new

    def raw(self, name: str) -> Any:
        """Read the value of a key as it stands, or the default."""
        self.read.add(name)
        return self.data[name] if name in self.data else self.defaults[name]

    def given(self, name: str) -> Any:
        """Read the value of a key that has no default of its own; None when it is left out."""
        self.read.add(name)
        return self.data.get(name)

    def size(self, name: str, *, lowest: int = 1, highest: int = MAX_SIZE) -> int:
        """Read a whole number."""
        value = self.raw(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise SpecError(name, "must be a whole number", value, f"choose {lowest} or more")
        if not lowest <= value <= highest:
            rule = f"at least {lowest}" if value < lowest else f"at most {highest}"
            raise SpecError(name, f"must be {rule}", value, f"choose {lowest} to {highest}")
        return value

    def layers(self, name: str, *, lowest: int = 1) -> int:
        """Read a number of layers."""
        return self.size(name, lowest=lowest, highest=MAX_LAYERS)

    def optional_size(self, name: str, *, lowest: int = 1) -> int | None:
        """Read a whole number or null."""
        return None if self.raw(name) is None else self.size(name, lowest=lowest)

    def number(self, name: str) -> float:
        """Read a positive number."""
        return positive(name, self.raw(name))

    def optional_number(self, name: str) -> float | None:
        """Read a positive number or null."""
        return None if self.raw(name) is None else self.number(name)

    def flag(self, name: str) -> bool:
        """Read true or false."""
        value = self.raw(name)
        if not isinstance(value, bool):
            raise SpecError(name, "must be true or false", value, "choose true or false")
        return value

    def sizes(self, names: str) -> Json:
        """Read fields that are whole numbers: `field=key`, or one word for both."""
        return {field: self.size(key) for field, key in pairs(names)}

    def numbers(self, names: str) -> Json:
        """Read fields that are positive numbers, likewise."""
        return {field: self.number(key) for field, key in pairs(names)}

    def flags(self, names: str) -> Json:
        """Read fields that are true or false, likewise."""
        return {field: self.flag(key) for field, key in pairs(names)}

    def listed(self, name: str, value: object, n: int, what: str = "names") -> list[Any]:
        """Check that a value is a list of `n`, one a layer."""
        if not isinstance(value, list) or len(value) != n:
            raise SpecError(name, f"must be a list of {n} {what}", value, "remove it")
        return value

    def only(self, name: str, *allowed: object, why: str = "") -> Any:
        """Read a value that must be one of `allowed`, those that a spec can express."""
        value = self.raw(name)
        if not any(same(value, a) for a in allowed):
            self.unmapped(name, value, why or f"choose {' or '.join(map(as_json, allowed))}")
        return value

    def fixed(self, name: str, *allowed: object) -> None:
        """Check a key that transformers computes or takes for granted;
        written down, it must agree.
        """
        value = self.given(name)
        if value is not None and not any(same(value, a) for a in allowed):
            self.unmapped(name, value, f"here it can only be {' or '.join(map(as_json, allowed))}")

    def agrees(self, name: str, value: object) -> None:
        """Check a key that transformers derives from others,
        but obeys where it is written down, even as null.
        """
        given = self.given(name)
        if name in self.data and not same(given, value):
            self.unmapped(name, given, f"by the other keys it is {as_json(value)}: remove it")

    def own_name(self, name: str) -> None:
        """Refuse another name for a key that transformers must find under its first name."""
        other = self.spelled.get(name, name)
        if other != name:
            self.unmapped(other, self.data[name], f"call it {name}: other keys depend on it")

    def activation(self, name: str, *, gated: bool) -> Json:
        """Read an activation function as the spec's fields, with whether it gates."""
        value = self.raw(name)
        if not isinstance(value, str):
            raise SpecError(name, "must be the name of an activation", value, "for example silu")
        if value == "quick_gelu":
            return {"activation": "silu", "swish_beta": QUICK_GELU_BETA, "gated": gated}
        if value not in ACTIVATIONS:
            remedy = nearest(value, ACTIVATIONS, f"choose one of {', '.join(ACTIVATIONS)}")
            self.unmapped(name, value, remedy)
        return {"activation": ACTIVATIONS[value], "gated": gated}

    def differs(self, what: str) -> None:
        """Note what transformers computes and no spec says, though no count depends on it."""
        self.notes.append(f"{what}: no count depends on it")
        self.different.append(what)

    def unmapped(self, name: str, value: object, remedy: str) -> NoReturn:
        """Raise `UnmappedKey` for a value that may be right, but that no spec says."""
        raise UnmappedKey(name, "has a value that no spec expresses", value, remedy)

    def finish(
        self,
        ignored: Collection[str],
        *,
        kind: str,
        may_pass: Callable[[str, object], bool] | None = None,
    ) -> tuple[str, ...]:
        """Return the keys that were passed over; raise `UnmappedKey` for one that nobody knows,
        unless it `may_pass`, and then it is kept as unread.

        A key of the family that its row did not read has no part in this class or layout.
        """
        harmless = HARMLESS | frozenset(ignored)
        passed = []
        for name, value in self.data.items():
            if name in self.read:
                continue
            if name in NEUTRAL and name not in ignored:
                if not any(same(value, a) for a in NEUTRAL[name]):
                    self.unmapped(name, value, "remove it")
            elif name == "is_encoder_decoder":
                if self.end != "encoder" and value is not (kind == "encoder-decoder"):
                    self.unmapped(name, value, "remove it")
            elif name not in harmless and name not in self.defaults:
                if may_pass is not None and may_pass(name, value):
                    self.unread[name] = value
                    continue
                known = {*self.defaults, *self.aliases, *self.read, *harmless, *NEUTRAL}
                raise UnmappedKey(
                    shown_name(name),
                    "is not a key that this mapping understands",
                    value,
                    nearest(name, known, "remove it if it changes nothing"),
                )
            passed.append(name)
        return tuple(passed)


def pairs(names: str) -> list[tuple[str, str]]:
    """Split "field=key ..." into pairs; one word is both.

    >>> pairs("d_ff=intermediate_size vocab_size")
    [('d_ff', 'intermediate_size'), ('vocab_size', 'vocab_size')]
    """
    words = (word.partition("=") for word in names.split())
    return [(field, key or field) for field, _, key in words]


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Reword a message with the names that a file has for what it speaks of.

    >>> renamed("n_kv_heads must divide n_heads", {"n_heads": "n_head"})
    'n_kv_heads must divide n_head'
    """
    import re

    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text)


def in_names(error: SpecError, names: Mapping[str, str]) -> SpecError:
    """Reword a broken rule of a spec in the names that a file has for its fields."""
    plain = error.reworded(unset=lambda name: f"remove {name}", give=lambda name: f"give {name}")
    field, rule, remedy = (renamed(t, names) for t in (plain.field, plain.rule, plain.remedy))
    return SpecError(field, rule, plain.value, remedy)


def is_number(value: object) -> TypeGuard[int | float]:
    """Tell whether a value is an int or float that is not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def positive(name: str, value: object) -> float:
    """Check that a value is a positive number."""
    if not is_number(value) or not 0 < value < 1e12:
        raise SpecError(name, "must be a positive number", value, "choose one below 1e12")
    return float(value)


def same(value: object, other: object) -> bool:
    """Tell whether two values are equal, and not only because True == 1."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def as_json(value: object) -> str:
    """Show a value as a config has it, in one line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return shown_value(value)


MOST = 12  # keys that are named
ANY: object = object()  # where nothing is rotated, how is of no matter
# Keys of several families -> what they would say of a spec's fields; the legend has those of sizes.
MEANINGS: tuple[tuple[str, Callable[[Json], object]], ...] = (
    ("attention_bias qkv_bias use_qkv_bias add_qkv_bias", lambda s: s["q_bias"]),
    ("attention_out_bias attention_output_bias o_bias", lambda s: s["o_bias"]),
    ("mlp_bias ffn_bias", lambda s: s["ffn_bias"]),
    ("use_bias bias add_bias_linear", lambda s: s["q_bias"] or s["o_bias"] or s["ffn_bias"]),
    ("no_bias", lambda s: not (s["q_bias"] or s["o_bias"] or s["ffn_bias"])),
    ("lm_head_bias", lambda s: s["head_bias"]),
    ("use_qk_norm qk_layernorm use_qk_layernorm qk_norm", lambda s: s["qk_norm"] != "none"),
    ("qk_norm_type", lambda s: {"head": "per_head", "full": "per_layer"}.get(s["qk_norm"])),
    ("attn_output_gate attention_output_gate", lambda s: s["output_gate"]),
    ("attention_head_dim", lambda s: s["head_dim"]),
    ("use_gemma_norm", lambda s: s["norm_unit_offset"]),
    ("use_routing_bias", lambda s: s["selection_bias"]),
    ("tie_word_embeddings tie_embeddings", lambda s: s["tie_embeddings"]),
    ("use_sliding_window", lambda s: s["window"] is not None),
    ("layer_types", lambda s: _kinds(s)),
    ("attention_sinks add_swa_attention_sink_bias", lambda s: s["attention_sinks"]),
    ("norm_topk_prob moe_renormalize", lambda s: s["router"].endswith("_renorm")),
    ("scoring_func", lambda s: s["router"].removesuffix("_renorm")),
    ("routed_scaling_factor", lambda s: s["routed_scale"]),
    ("attn_logit_softcapping", lambda s: s["attention_softcap"]),
    ("final_logit_softcapping", lambda s: s["logit_softcap"]),
    (
        "norm_eps rms_norm_eps layer_norm_eps layer_norm_epsilon layernorm_epsilon norm_epsilon",
        lambda s: s["norm_eps"],
    ),
    ("rope_theta rotary_emb_base", lambda s: s["rope_theta"] if s["position"] == "rope" else ANY),
    ("partial_rotary_factor rotary_pct rotary_percent", lambda s: _share(s)),
    ("hidden_act hidden_activation activation_function", lambda s: s["activation"]),
)
OF_KEY = {key: meaning for keys, meaning in MEANINGS for key in keys.split()}
_of_size: dict[str, list[str]] = {}  # by a key, the fields that it is another name of; made once


def _sizes() -> dict[str, list[str]]:
    if not _of_size:
        from metacount.spec.legend import MODEL_TERMS

        for term in MODEL_TERMS:
            for key in (term.name, *term.elsewhere):
                _of_size.setdefault(key, []).append(term.name)
    return _of_size


def _share(spec: Json) -> object:
    if spec["position"] != "rope":
        return ANY
    return 1.0 if spec["rotary_dim"] is None else spec["rotary_dim"] / spec["head_dim"]


def _kinds(spec: Json) -> object:
    """List the kinds of a model's layers where all are alike; else nothing says them."""
    windowed = spec["window"] is not None
    kind = "sliding_attention" if windowed else "full_attention"
    plain = spec["mixer_pattern"] == "A" and (not windowed or spec["window_pattern"] == "L")
    return [kind] * spec["n_layers"] if plain else None


def says_nothing(value: object) -> bool:
    """Tell whether a value says that something is absent, or scales by 1.0.

    >>> [says_nothing(value) for value in (False, None, 0, 1.0, {}, [], [1, 1], "x", 1, [1, 2])]
    [True, True, True, True, True, True, True, False, False, False]
    """
    if isinstance(value, list):
        return all(same(item, value[0]) for item in value)
    absent = value is None or value is False or value == {}
    return absent or (is_number(value) and value == 0) or (isinstance(value, float) and value == 1)


def may_say_nothing(key: str, value: object) -> bool:
    """Tell whether a key that no row reads may be one that changes nothing."""
    return says_nothing(value) or key in OF_KEY or key in _sizes()


def pass_over(keys: Keys, spec: ModelSpec) -> tuple[str, ...]:
    """Note the keys that no row reads in one line, and return them.

    Raises `UnmappedKey` for one that says something else than the spec.
    """
    if not keys.unread:
        return ()
    fields = spec.to_dict()
    for key, value in keys.unread.items():
        meant = [fields[name] for name in _sizes().get(key, ())]
        if key in OF_KEY:
            meant.append(OF_KEY[key](fields))
        if value is None or not meant or any(_agree(value, read) for read in meant):
            continue
        read = next((m for m in meant if m is not None), None)
        remedy = f"{'none' if read is None else as_json(read)} is read: remove it"
        raise UnmappedKey(key, "is not read by this type, and says something else", value, remedy)
    texts = [f"{shown_name(key)}={as_json(value)}" for key, value in keys.unread.items()]
    more = f" and {len(texts) - MOST} more" if len(texts) > MOST else ""
    keys.notes.append(f"passed over, for they change nothing: {', '.join(texts[:MOST])}{more}")
    return tuple(keys.unread)


def _agree(value: object, read: object) -> bool:
    """Tell whether a key says what is read; where nothing is, it may be 0, false or null."""
    if read is ANY or same(value, read):
        return True
    if not read:
        return not value
    return isinstance(value, str) and ACTIVATIONS.get(value) == read
