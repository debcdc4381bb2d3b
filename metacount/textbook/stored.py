"""Bytes of a quantised model as its checkpoint stores it, from the config alone.

A quantiser packs the matrices of linear layers and leaves embeddings, norms, biases, convolutions
and routers as they are; the config lists modules that stay whole. Scales, zero points and what else
stands beside a packed matrix are counted with it. Patterns are a stranger's: no regular expression
is run, those of plain words, `.*` and `(a|b)` are read.
"""

from __future__ import annotations

from fractions import Fraction

from metacount.errors import SpecError, shown_name
from metacount.formulas.model import params
from metacount.formulas.step import tensors_by_path
from metacount.frozen import frozen
from metacount.units import exact

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from metacount.files import Json
    from metacount.formulas.tape import Weight
    from metacount.spec import ModelSpec

    # Rows and columns of a matrix -> bytes that are stored for it, and scales among its values.
    Packed = Callable[[int, int], tuple[int, int]]

WORD = 32  # bits of the integers that values of 1 to 8 bits are packed into
MOST_PATTERNS = 200_000
MOST_ALTERNATIVES = 64
LEFT_OUT = ("modules_to_not_convert", "ignore", "exclude_modules", "llm_int8_skip_modules")
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# Our names of modules -> those in use, where they differ; {} is the number of an expert.
OTHER_NAMES = {
    "mlp.experts.gate_up_proj": ("mlp.experts.{}.gate_proj", "mlp.experts.{}.w1", "mlp.experts"),
    "mlp.experts.up_proj": ("mlp.experts.{}.up_proj", "mlp.experts.{}.w3", "mlp.experts"),
    "mlp.experts.down_proj": ("mlp.experts.{}.down_proj", "mlp.experts.{}.w2", "mlp.experts"),
    "linear_attn.q_proj": ("linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz"),
    "linear_attn.k_proj": ("linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz"),
    "linear_attn.v_proj": ("linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz"),
    "linear_attn.g_proj": ("linear_attn.in_proj_z", "linear_attn.in_proj_qkvz"),
    "linear_attn.a_proj": ("linear_attn.in_proj_a", "linear_attn.in_proj_ba"),
    "linear_attn.b_proj": ("linear_attn.in_proj_b", "linear_attn.in_proj_ba"),
    "linear_attn.o_proj": ("linear_attn.out_proj",),
}
BLOCKS = ("mlp", "block_sparse_moe", "feed_forward", "mixer")
PREFIXES = ("", "model.", "model.language_model.", "language_model.model.", "backbone.")
OTHER_PARTS = ("mtp", "vis", "audio")  # words before `layers.` in names of what is not the stack


@frozen
class Stored:
    """`n_bytes` of the parameters as stored, `n_values` with scales among them; `how` in words.
    `by_role`: parameters and their bytes; empty where only the sum is known.
    """

    n_bytes: int
    n_values: int
    how: str
    by_role: Mapping[str, tuple[int, int]] = {}

    def bytes_a_value(self, role: str) -> Fraction:
        """Return the bytes of one parameter of a role on average; a tied head is the embedding."""
        if not self.by_role:
            return Fraction(self.n_bytes, self.n_values)
        values, n_bytes = self.by_role.get(role) or self.by_role["embedding"]
        return Fraction(n_bytes, values)


def stored_from_config(spec: ModelSpec, config: Json) -> Stored | str | None:
    """Count the bytes of a quantised config's parameters, without prediction modules.

    None where nothing is quantised; a reason where the config does not say enough.
    """
    outer, inner = config, config.get("text_config")
    inner = inner if isinstance(inner, dict) else {}
    quantization = outer.get("quantization_config") or inner.get("quantization_config")
    if not isinstance(quantization, dict):
        return None
    n_bytes = quantization.get("n_bytes")
    if (
        quantization.get("quant_method") == "gguf" and type(n_bytes) is int
    ):  # of a file's own header
        how = f"of all tensors of the GGUF file, in {shown_name(str(quantization.get('types')))}"
        return Stored(n_bytes=n_bytes, n_values=int(params(spec)), how=how)
    if spec.has_encoder:
        return "not known of encoders and decoders"
    name = next((d for c in (inner, outer) for k in ("dtype", "torch_dtype") if (d := c.get(k))), 0)
    width = BYTES.get(name if isinstance(name, str) else "bfloat16", 2)
    try:
        how, packed, takes = _format(quantization, width)
        modules = _Modules(quantization, packed)
    except SpecError as error:
        return f"{error.field} {error.rule}"
    n_values = n_packed = 0
    by_role: dict[str, tuple[int, int]] = {}
    for path, weight in tensors_by_path(spec).items():
        size = int(weight.size)
        pack = modules.packing(_in_use(path, weight, modules)) if takes(weight) else None
        n_bytes = size * width
        if pack is not None:
            rows, columns = (int(n) for n in weight.shape[-2:])
            parts = weight.halves if ".experts." in path else 1
            matrices = size // (rows * columns) * parts  # all experts are in one tensor
            of_matrix, scales = pack(rows // parts, columns)
            n_bytes = matrices * of_matrix
            n_values += matrices * scales
            n_packed += size
        of_role = by_role.get(weight.role, (0, 0))
        by_role[weight.role] = (of_role[0] + size, of_role[1] + n_bytes)
    total = int(params(spec))
    return Stored(
        n_bytes=sum(n for _, n in by_role.values()),
        n_values=total + n_values,
        by_role=by_role,
        how=f"{how}: {exact(n_packed)} of {exact(total)} values, the others in {width} bytes each",
    )


# ---- formats: bytes of a matrix [rows, columns] with what stands beside it ----


def _up(size: int, part: int) -> int:
    return -(-size // part)


def _format(config: Json, width: int) -> tuple[str, Packed | None, Callable[[Weight], bool]]:
    """Return a format in words, its packing (None: each module has its own), what is packed."""
    method = config.get("quant_method")
    algorithm = config.get("quant_algo")
    if method == "modelopt" and not any(isinstance(config.get(key), list) for key in LEFT_OUT):
        raise SpecError("quantization", "names no modules that stay as they are", None, "")
    if algorithm == "MIXED_PRECISION" and method == "modelopt":
        return "ModelOpt, an algorithm for each module", None, _is_linear
    if method == "mxfp4":
        return "MXFP4, a scale of a byte for 32 values", _mxfp4, _is_expert
    if method in ("gptq", "awq"):
        return _words(config, method, width)
    if method == "bitsandbytes":
        return _bitsandbytes(config)
    if method == "fp8" and isinstance(block := config.get("weight_block_size"), list):
        if len(block) != 2 or not all(type(n) is int and 0 < n < 2**20 for n in block):
            raise SpecError("weight_block_size", "must be two sizes", block, "remove it")
        a, b = block

        def by_blocks(rows: int, columns: int) -> tuple[int, int]:
            scales = _up(rows, a) * _up(columns, b)
            return rows * columns + 4 * scales, scales

        return f"FP8, a scale in float32 for {a} x {b} values", by_blocks, _is_linear
    if algorithm == "NVFP4":
        return "NVFP4 of ModelOpt, a scale of a byte for 16 values", _nvfp4, _is_linear
    if algorithm == "FP8" or (method in ("fp8", "fbgemm_fp8") and algorithm is None):
        static = algorithm == "FP8" or config.get("activation_scheme") == "static"
        return "FP8, a scale a matrix", _fp8_static if static else _fp8, _is_linear
    if method == "compressed-tensors":
        return _compressed(config, width)
    if method is None and "bits" in config:
        return _mlx(config, width)
    name = shown_name(str(algorithm or method))
    raise SpecError("quantization_config", f"is of a format that is not read: {name}", None, "")


def _mxfp4(rows: int, columns: int) -> tuple[int, int]:
    groups = rows * _up(columns, 32)
    return rows * _up(columns, 2) + groups, groups


def _nvfp4(rows: int, columns: int) -> tuple[int, int]:
    groups = rows * _up(columns, 16)  # weight_scale_2 and input_scale are a float32 each
    return rows * _up(columns, 2) + groups + 8, groups + 2


def _nvfp4_weights(rows: int, columns: int) -> tuple[int, int]:
    n_bytes, scales = _nvfp4(rows, columns)
    return n_bytes - 4, scales - 1  # activations are not quantised: no input_scale


def _fp8(rows: int, columns: int) -> tuple[int, int]:
    return rows * columns + 4, 1


def _fp8_static(rows: int, columns: int) -> tuple[int, int]:
    return rows * columns + 8, 2


def _mxfp8(rows: int, columns: int) -> tuple[int, int]:
    groups = rows * _up(columns, 32)
    return rows * columns + groups, groups


# of ModelOpt, of one module
ALGORITHMS = {
    "FP8": _fp8_static,
    "MXFP8": _mxfp8,
    "NVFP4": _nvfp4,
    "W4A16_NVFP4": _nvfp4_weights,
}


def _bits(config: Json, name: str = "bits") -> int:
    bits = config.get(name)
    if type(bits) is not int or not 1 <= bits <= 8:
        raise SpecError(name, "must be 1 to 8 bits", bits, "write it down")
    return bits


def _group(config: Json, columns: int) -> int:
    """Return how many values share a scale: all of a row where it is -1, null or left out."""
    group = config.get("group_size")
    if group in (None, -1):
        return columns
    if type(group) is not int or not 0 < group < 2**20:
        raise SpecError("group_size", "must be a size or -1", group, "write it down")
    return group


def _words(config: Json, method: str, width: int) -> tuple[str, Packed, Callable[[Weight], bool]]:
    """GPTQ packs along the input and says each column's group; AWQ packs along the output."""
    bits = _bits(config)
    _group(config, 1)

    def gptq(rows: int, columns: int) -> tuple[int, int]:
        groups = _up(columns, _group(config, columns))
        words = _up(columns * bits, WORD) * rows + groups * _up(rows * bits, WORD)
        return 4 * words + width * groups * rows + 4 * columns, groups * rows

    def awq(rows: int, columns: int) -> tuple[int, int]:
        groups = _up(columns, _group(config, columns))
        words = (columns + groups) * _up(rows * bits, WORD)
        return 4 * words + width * groups * rows, groups * rows

    packing = gptq if method == "gptq" else awq
    size = config.get("group_size")
    return f"{method.upper()}, {bits} bits, groups of {size}", packing, _is_linear


def _bitsandbytes(config: Json) -> tuple[str, Packed, Callable[[Weight], bool]]:
    if config.get("load_in_8bit") or config.get("_load_in_8bit"):
        return "bitsandbytes int8", lambda o, i: (o * i + 4 * o + 1, o), _is_linear
    twice = bool(config.get("bnb_4bit_use_double_quant"))

    def nf4(rows: int, columns: int) -> tuple[int, int]:
        n = rows * columns
        blocks = _up(n, 64)
        # with double quantisation: a byte a block, a float32 for 256 of them and its table
        scales = blocks + 4 * _up(blocks, 256) + 4 * 256 if twice else 4 * blocks
        return _up(n, 2) + scales + 4 * 16, blocks

    return "bitsandbytes 4-bit, blocks of 64 (without its JSON of each tensor)", nf4, _is_linear


def _compressed(config: Json, width: int) -> tuple[str, Packed, Callable[[Weight], bool]]:
    groups = config.get("config_groups")
    groups = list(groups.values()) if isinstance(groups, dict) else []
    if len(groups) != 1 or not isinstance(groups[0], dict):
        raise SpecError("config_groups", "has more than one group", None, "")
    it = groups[0].get("weights")
    if not isinstance(it, dict) or groups[0].get("targets") not in (["Linear"], None):
        raise SpecError("config_groups", "is not of all Linear", None, "")
    bits, kind = _bits(it, "num_bits"), it.get("type", "int")
    _group(it, 1)
    if kind == "float" and bits == 4 and it.get("group_size") in (16, 32):
        if it["group_size"] == 32:
            return "MXFP4 of compressed-tensors", _mxfp4, _is_linear
        return "NVFP4 of compressed-tensors", _nvfp4, _is_linear

    def scales(rows: int, columns: int) -> int:
        strategy = it.get("strategy", "group" if it.get("group_size") else "tensor")
        n_groups = {"tensor": 1, "channel": rows}.get(str(strategy))
        return rows * _up(columns, _group(it, columns)) if n_groups is None else n_groups

    def packed(rows: int, columns: int) -> tuple[int, int]:
        n = scales(rows, columns)
        if bits == 8:
            return rows * columns + width * n, n
        words = 4 * rows * _up(columns * bits, WORD)
        zeros = 0 if it.get("symmetric", True) else 4 * _up(n * bits, WORD)
        return words + width * n + zeros + 16, n  # weight_shape: two int64

    what = f"compressed-tensors, {bits} bits ({shown_name(str(kind))})"
    return what, packed, _is_linear


def _mlx(config: Json, width: int) -> tuple[str, Packed, Callable[[Weight], bool]]:
    """MLX packs tables too, with a scale and a bias of each group."""
    bits = _bits(config)
    if any(isinstance(value, dict) for value in config.values()):
        raise SpecError("quantization", "must be the same for all modules", None, "")
    _group(config, 1)

    def packed(rows: int, columns: int) -> tuple[int, int]:
        groups = rows * _up(columns, _group(config, columns))
        return 4 * rows * _up(columns * bits, WORD) + 2 * width * groups, 2 * groups

    how = f"MLX, {bits} bits, groups of {config.get('group_size')}"
    return how, packed, lambda w: _is_linear(w) or w.role == "embedding" or _is_router(w)


# ---- which modules ----


def _is_matrix(weight: Weight) -> bool:
    matrix = weight.rows or len(weight.shape) == 3  # of experts, in one tensor
    return len(weight.shape) > 1 and bool(matrix) and not weight.name.endswith("_bias")


def _is_expert(weight: Weight) -> bool:
    return ".experts." in weight.name and _is_matrix(weight)


def _is_router(weight: Weight) -> bool:
    return weight.role == "moe" and ".gate." in weight.name and _is_matrix(weight)


def _is_linear(weight: Weight) -> bool:
    return _is_matrix(weight) and not _is_router(weight) and "conv" not in weight.name


class _Modules:
    """Which modules stay as they are, by the patterns of a config; how the others are packed."""

    def __init__(self, config: Json, packed: Packed | None) -> None:
        self.packed = packed
        self.packings = {} if packed is not None else _packings(config)
        lists = [config.get(key) for key in LEFT_OUT]
        names = [name for names in lists if isinstance(names, list) for name in names]
        if len(names) > MOST_PATTERNS or not all(isinstance(name, str) for name in names):
            raise SpecError("modules_to_not_convert", "must be a list of names", None, "")
        method = config.get("quant_method")
        # what leaves the head as it is without saying so
        self.skips_head = method in ("fp8", "gptq", "awq", "bitsandbytes", "mxfp4")
        self.starts: set[str] = set()
        self.words: list[list[str]] = []
        self.globs: list[list[str]] = []
        for name in dict.fromkeys(names):
            for pattern in _read_pattern(name):
                plain = pattern.removesuffix("*").removesuffix(".")
                if "*" in plain:
                    self.globs.append(pattern.split("*"))
                elif "layers." in plain:
                    self.starts |= {*_of_layers(plain)}
                elif not pattern.endswith("*"):
                    self.words.append(plain.split("."))
                else:
                    self.globs.append(pattern.split("*"))

    def keep(self, name: str) -> bool:
        """Tell whether the module of this name, from `layers.` on, stays as it is."""
        parts = name.split(".")
        if any(".".join(parts[:n]) in self.starts for n in range(1, len(parts) + 1)):
            return True
        if any(
            parts[at : at + len(words)] == words
            for words in self.words
            for at in range(len(parts) - len(words) + 1)
        ):
            return True
        return any(_fits(prefix + name, glob) for glob in self.globs for prefix in PREFIXES)

    def packing(self, names: Iterable[str]) -> Packed | None:
        """Return how the module of these names is packed; None where it stays as it is."""
        names = [*names]
        if not names or any(map(self.keep, names)):
            return None
        if self.packed is not None:
            return self.packed
        paths = (name.split(".") for name in names)
        parents = (".".join(path[:n]) for path in paths for n in range(len(path), 0, -1))
        return next((self.packings[name] for name in parents if name in self.packings), None)


def _packings(config: Json) -> dict[str, Packed]:
    layers = config.get("quantized_layers")
    if not isinstance(layers, dict) or len(layers) > MOST_PATTERNS:
        raise SpecError("quantized_layers", "must name the modules that are packed", None, "")
    packings: dict[str, Packed] = {}
    for name, module in layers.items():
        algorithm = module.get("quant_algo") if isinstance(module, dict) else None
        if algorithm not in ALGORITHMS:
            rule = f"has an algorithm that is not read: {shown_name(str(algorithm))}"
            raise SpecError("quantized_layers", rule, None, "")
        packings |= dict.fromkeys(_of_layers(name), ALGORITHMS[algorithm])
    return packings


def _of_layers(name: str) -> tuple[str, ...]:
    """Return a module's name from `layers.` on; none of a tower or of prediction modules."""
    before, layers, after = name.rpartition("layers.")
    if any(word.startswith(OTHER_PARTS) for word in before.split(".")):
        return ()
    return (layers + after,)


def _read_pattern(name: str) -> list[str]:
    if not name.startswith("re:"):
        return [name]
    text = name[3:].removeprefix("^").removesuffix("$").replace("\\.", "\0").replace(".*", "*")
    texts = [""]
    while text:
        before, bar, rest = text.partition("(")
        inside, closed, text = rest.partition(")") if bar else ("", "", "")
        words = inside.split("|") if bar else [""]
        texts = [f"{start}{before}{word}" for start in texts for word in words]
        if (bar and not closed) or len(texts) > MOST_ALTERNATIVES:
            raise SpecError("ignore", "has a pattern that is not read", None, "")
    if any(set(pattern) & set("[]{}()+?|\\^$") for pattern in texts):
        raise SpecError("ignore", "has a pattern that is not read", None, "")
    return [pattern.replace("\0", ".") for pattern in texts]


def _fits(name: str, pieces: list[str]) -> bool:
    if not name.startswith(pieces[0]) or not name.endswith(pieces[-1]):
        return False
    at = len(pieces[0])
    for piece in pieces[1:-1]:
        at = name.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return at + len(pieces[-1]) <= len(name)


def _in_use(path: str, weight: Weight, modules: _Modules) -> list[str]:
    """List what a module may be called in a config; none of a head that nobody packs."""
    _, layers, inner = path.removesuffix(".weight").rpartition("layers.")
    if weight.role in ("head", "embedding"):
        if weight.role == "head":
            return [] if modules.skips_head else ["lm_head", "head", "output"]
        return ["embed_tokens", "embeddings", inner]
    number, _, name = inner.partition(".") if layers else ("", "", inner)
    names = []
    for candidate in (name, *OTHER_NAMES.get(name, ())):
        candidate = candidate.format(0)
        names.append(candidate)
        start, _, rest = candidate.partition(".")
        if start == "mlp":
            names += [f"{block}.{rest}" for block in BLOCKS[1:]]
            if rest.startswith("shared_experts."):
                names.append(f"mlp.{rest.replace('shared_experts.', 'shared_expert.')}")
        elif start in ("self_attn", "mamba"):
            names.append(f"mixer.{rest}")
    return [f"layers.{number}.{name}" for name in names] if layers else names[:1]
