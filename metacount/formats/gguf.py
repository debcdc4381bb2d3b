"""A GGUF file as the config of transformers that means the same model.

Every key of the architecture is read or named in an error, and so is every tensor that the
architecture does not have: what is not understood may change the model.
"""

from __future__ import annotations

import os
import re
import struct
from math import prod

from metacount.errors import InputError, SpecError, nearest, shown
from metacount.files import check_no_pointer, open_regular
from metacount.formats import Described
from metacount.formats.tensors import StoredTensor
from metacount.frozen import frozen
from metacount.huggingface.config.keys import Keys

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any, BinaryIO

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
        described = (
            f"GGUF, architecture {self.name}, {len(self.shapes)} tensors in {kinds}; counted "
            "are values, however they are stored"
        )
        notes = (described, *([self.it.said] if self.it.said else []), *self.notes)
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
        full = f"{self.name}.{key}"
        if full not in self.keys.data:
            raise self.wrong(key, "is missing", None)
        self.names[theirs] = full
        return full

    def size(self, key: str, theirs: str) -> int:
        return self.keys.size(self.named(key, theirs))

    def widths(self, config: Json) -> Json:
        """Read the heads, their width, and the feed-forward's."""
        widths: Json = {}
        d_model, n_heads = config["hidden_size"], config["num_attention_heads"]
        groups = "attention.head_count_kv"
        widths["num_key_value_heads"] = (
            self.size(groups, "num_key_value_heads") if self.has(groups) else n_heads
        )
        lengths = {
            self.size(f"attention.{side}_length", "head_dim")
            for side in ("key", "value")
            if self.has(f"attention.{side}_length")
        }
        if len(lengths) > 1:
            rule = "differs from key_length, which is not so here"
            raise self.wrong("attention.value_length", rule, min(lengths))
        if not lengths and d_model % n_heads:
            rule = f"must divide embedding_length: {d_model} % {n_heads} = {d_model % n_heads}"
            raise self.wrong("attention.head_count", rule, n_heads, "give attention.key_length")
        widths["head_dim"] = lengths.pop() if lengths else d_model // n_heads
        widths["intermediate_size"] = self.size("feed_forward_length", "intermediate_size")
        if self.has("expert_count") and self.keys.data[f"{self.name}.expert_count"] != 0:
            widths |= {theirs: self.size(key, theirs) for key, theirs in EXPERTS.items()}
        else:
            for key in EXPERTS:
                self.keys.fixed(f"{self.name}.{key}", 0)
        return widths

    def rope(self, head_dim: int) -> Json:
        """Read the base of RoPE, its share of the head, and its scaling."""
        fields: Json = {}
        if self.has("rope.freq_base"):
            fields["rope_theta"] = self.keys.number(self.named("rope.freq_base", "rope_theta"))
        if self.has("rope.dimension_count"):
            turned = self.size("rope.dimension_count", "partial_rotary_factor")
            if turned != head_dim and self.name != "phi3":
                rule = f"must be the heads' width {head_dim} here"
                raise self.wrong("rope.dimension_count", rule, turned)
            if self.name == "phi3":
                fields["partial_rotary_factor"] = turned / head_dim
        kind = self.keys.given(f"{self.name}.rope.scaling.type")
        details = {
            key: value
            for key, value in self.keys.data.items()
            if key.startswith(f"{self.name}.rope.scaling.")
        }
        self.keys.read |= set(details)
        if kind == "linear":
            factor = self.keys.number(self.named("rope.scaling.factor", "factor"))
            fields["rope_scaling"] = {"rope_type": "linear", "factor": factor}
        elif details and kind != "none":
            self.notes.append("RoPE's scaling is not taken over: no count depends on it")
        if self.shapes.keys() & {"rope_freqs.weight", "rope_factors_long.weight"}:
            self.notes.append("RoPE's factors are a tensor of the file: no count depends on them")
        window = f"{self.name}.attention.sliding_window"
        if self.name == "phi3" and self.keys.given(window):
            fields["sliding_window"] = self.size("attention.sliding_window", "sliding_window")
        return fields

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
        fields: Json = {}
        if not self.it.tied:
            fields["tie_word_embeddings"] = "output.weight" not in self.shapes
        wanted = set(self.it.biased)
        if self.name == "llama":
            groups = {"attention_bias": ATTENTION, "mlp_bias": FFN}
            fields |= {name: True for name, group in groups.items() if biased >= group}
            wanted |= {
                tensor_name
                for group in (ATTENTION, FFN)
                if biased >= group
                for tensor_name in group
            }
        if biased != wanted:
            odd = ", ".join(sorted(biased ^ wanted))
            rule = f"{'has' if biased - wanted else 'lacks'} a bias, unlike {self.it.model_type}"
            raise SpecError(shown(odd), rule, sorted(biased), "convert it again")
        return fields


def _tensor_names(name: str) -> set[str]:
    from gguf.constants import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES

    kind = next(kind for kind, known in MODEL_ARCH_NAMES.items() if known == name)
    return {TENSOR_NAMES[tensor].rpartition("{bid}.")[2] for tensor in MODEL_TENSORS[kind]}


MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 2**27  # a vocabulary of 256,000 pieces with its merges takes about 2^24
MAX_TENSORS = 2**17
MAX_KEYS = 2**14
MAX_ITEMS = 2**21  # texts of all lists together; numbers are passed over at once
MAX_NAME = 256
MAX_KEPT = 4096  # characters of a text, or items of a list of numbers, that are kept
MAX_DEPTH = 4  # of lists in lists
MAX_DIMS = 4  # of ggml's tensors
MAX_VALUES = 2**48
MAX_PARTS = 2**10
SPLIT_COUNT = "split.count"
ALIGNMENT = 32

TEXT, LIST = 8, 9
# By the format's number of a type, how struct reads one.
NUMBERS = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}


@frozen
class Listed:
    """A list of which only the length is kept."""

    length: int


@frozen
class Header:
    """What a GGUF file says of itself. A text that is too long to be kept is None."""

    keys: Json
    tensors: tuple[StoredTensor, ...]  # shapes as PyTorch has them, rows last


def read_header(path: str) -> Header:
    """Read the header of a file on disk, with those of its other parts; no value is read."""
    header = _read_one(path)
    count = header.keys.get(SPLIT_COUNT, 1)
    if count == 1:
        return header
    folder, name = os.path.split(path)
    match = re.fullmatch(r"(.+)-(\d{5})-of-(\d{5})\.gguf", name)
    if type(count) is not int or not 1 < count <= MAX_PARTS or match is None:
        rule = f"is a part of {shown(repr(count))}, and not called NAME-00001-of-0000N.gguf"
        raise InputError(f"{shown(path)}: {rule}; join the parts with gguf-split --merge")
    parts = [f"{match[1]}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]
    headers = [_read_one(os.path.join(folder, part)) for part in parts]
    tensors = {tensor.name: tensor for each in headers for tensor in each.tensors}
    if len(tensors) < sum(len(each.tensors) for each in headers):
        raise InputError(f"{shown(path)}: two of its {count} parts hold a tensor of one name")
    keys = {k: v for k, v in headers[0].keys.items() if not k.startswith("split.")}
    return Header(keys=keys, tensors=tuple(tensors.values()))


def _read_one(path: str) -> Header:
    with open_regular(path, "GGUF") as file:
        return _header(_Reader(file, os.fstat(file.fileno()).st_size, shown(path)))


class _Reader:
    """A file that is read forward, never beyond its end and never without end."""

    def __init__(self, file: BinaryIO, size: int, where: str) -> None:
        self.file, self.size, self.where = file, size, where
        self.at = self.items = 0

    def wrong(self, fault: str) -> InputError:
        return InputError(f"{self.where}: {fault}; fetch or convert it again")

    def take(self, n_bytes: int) -> bytes:
        self._check(n_bytes)
        data = self.file.read(n_bytes)
        if len(data) < n_bytes:
            raise self.wrong("became shorter while it was read")
        self.at += n_bytes
        return data

    def skip(self, n_bytes: int) -> None:
        self._check(n_bytes)
        self.file.seek(n_bytes, os.SEEK_CUR)
        self.at += n_bytes

    def _check(self, n_bytes: int) -> None:
        if n_bytes > (rest := self.size - self.at):
            claim = f"at byte {self.at} it claims {n_bytes} more, the file has {rest}"
            raise self.wrong(f"is cut short: {claim}")
        if self.at + n_bytes > MAX_HEADER_BYTES:
            raise self.wrong(f"its header is longer than {MAX_HEADER_BYTES} bytes; no model's is")

    def number(self, kind: int) -> Any:
        letter = "<" + NUMBERS[kind]
        number = struct.unpack(letter, self.take(struct.calcsize(letter)))[0]
        return _as_written(number) if letter == "<f" else number

    def name(self) -> str:
        length = self.number(10)
        if not 0 < length <= MAX_NAME:
            raise self.wrong(f"a name has 1 to {MAX_NAME} bytes: at byte {self.at} it has {length}")
        raw = self.take(length)
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            name = ""
        if not name.isprintable() or not name:
            raise self.wrong(f"a name must be printable text: got {shown(repr(raw))}")
        return name

    def value(self, kind: int, depth: int = 0) -> object:
        """Read a value; of a long text or list no more than that it is there."""
        if kind in NUMBERS:
            return self.number(kind)
        if kind == TEXT:
            return self._text()
        if kind != LIST:
            raise self.wrong(f"a value at byte {self.at} is of type {kind}, which is none")
        if depth == MAX_DEPTH:
            raise self.wrong(f"lists at byte {self.at} are nested deeper than {MAX_DEPTH}")
        inner, length = self.number(4), self.number(10)
        if inner in NUMBERS:
            letter = NUMBERS[inner]
            width = struct.calcsize("<" + letter)
            if length > MAX_KEPT:
                self.skip(length * width)
                return Listed(length=length)
            return list(struct.unpack(f"<{length}{letter}", self.take(length * width)))
        self.items += length
        if self.items > MAX_ITEMS:
            raise self.wrong(f"its lists have more than {MAX_ITEMS} items")
        for _ in range(length):
            self.value(inner, depth + 1)
        return Listed(length=length)

    def _text(self) -> str | None:
        length = self.number(10)
        if length > MAX_KEPT:
            self.skip(length)
            return None
        return self.take(length).decode("utf-8", errors="replace")


def _as_written(number: float) -> float:
    """Return the shortest decimal that 32 bits keep as this number:
    1e-05 for 9.999999747378752e-06.

    >>> _as_written(struct.unpack("<f", struct.pack("<f", 1e-5))[0])
    1e-05
    """
    for digits in range(1, 10):
        short = float(f"{number:.{digits}g}")
        if struct.pack("<f", short) == struct.pack("<f", number):
            return short
    return number


def _header(reader: _Reader) -> Header:
    start = reader.take(min(8, reader.size))
    check_no_pointer(start, reader.where)
    if start[:4] != MAGIC:
        begins = f"it begins with {shown(repr(start[:4]))}, not with {MAGIC!r}"
        raise InputError(f"{reader.where}: is no GGUF file: {begins}")
    if len(start) < 8:
        raise reader.wrong(f"is cut short: it has {len(start)} bytes")
    version = struct.unpack("<I", start[4:])[0]
    if version not in VERSIONS:
        fault = "is big endian" if version % 65536 == 0 else f"is of version {version}"
        read = f"versions {' and '.join(map(str, VERSIONS))} are read, little endian"
        raise InputError(f"{reader.where}: {fault}; {read}; convert it again")
    n_tensors, n_keys = reader.number(10), reader.number(10)
    for n, most, what in ((n_tensors, MAX_TENSORS, "tensors"), (n_keys, MAX_KEYS, "keys")):
        if n > most:
            raise reader.wrong(f"claims {n} {what}; at most {most} are read")
    keys: Json = {}
    for _ in range(n_keys):
        name = reader.name()
        if name in keys:
            raise reader.wrong(f"{shown(name)} is given twice")
        keys[name] = reader.value(reader.number(4))
    alignment = keys.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= 2**20 or alignment & (alignment - 1):
        raise reader.wrong(
            f"general.alignment must be a power of two: got {shown(repr(alignment))}"
        )
    return Header(keys=keys, tensors=_tensors(reader, n_tensors, alignment))


def _tensors(reader: _Reader, n_tensors: int, alignment: int) -> tuple[StoredTensor, ...]:
    types = _types()
    tensors: dict[str, StoredTensor] = {}
    places: list[tuple[int, int, str]] = []
    for _ in range(n_tensors):
        name = reader.name()
        where = f"tensor {shown(name)}"
        if name in tensors:
            raise reader.wrong(f"{where} is given twice")
        n_dims = reader.number(4)
        if n_dims > MAX_DIMS:
            raise reader.wrong(f"{where} has {n_dims} dimensions; ggml has at most {MAX_DIMS}")
        sizes = [reader.number(10) for _ in range(n_dims)]
        kind, offset = reader.number(4), reader.number(10)
        if kind not in types:
            rule = f"is of type {kind}, which the installed gguf does not know"
            raise InputError(f"{reader.where}: {where} {rule}; install a newer one")
        dtype, block, size = types[kind]
        n_values = prod(sizes)
        if n_values > MAX_VALUES or not all(0 < size <= MAX_VALUES for size in sizes):
            raise reader.wrong(f"{where} has sizes that no tensor has: {shown(sizes)}")
        if sizes and sizes[0] % block:
            rows = f"has rows of {sizes[0]} values, {dtype} has blocks of {block}"
            raise reader.wrong(f"{where} {rows}")
        shape = tuple(reversed(sizes))
        tensors[name] = StoredTensor(name, dtype, shape, reader.where, (block, size))
        places.append((offset, offset + n_values // block * size, name))
    start, at = -(-reader.at // alignment) * alignment, 0
    for begin, end, name in sorted(places):
        if begin % alignment or begin < at:
            fault = "overlaps the one before it" if begin < at else "is not aligned"
            raise reader.wrong(f"tensor {shown(name)} begins at byte {begin} and {fault}")
        at = end
        if start + end > reader.size:
            ends = f"ends at byte {start + end}, the file has {reader.size}"
            raise reader.wrong(f"is cut short: tensor {shown(name)} {ends}")
    return tuple(tensors.values())


def _types() -> dict[int, tuple[str, int, int]]:
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError:
        fault = "a GGUF file is read with the library gguf, which is not installed"
        raise InputError(f"{fault}; pip install 'metacount[gguf]'") from None
    return {int(kind): (kind.name, block, size) for kind, (block, size) in GGML_QUANT_SIZES.items()}
