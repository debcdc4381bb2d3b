"""nanoGPT's arguments: a GPTConfig as JSON, or a config of train.py, never run."""

from __future__ import annotations

from metacount.errors import InputError, SpecError, nearest, shown
from metacount.files import MODULES, read_text
from metacount.formats import Described, spec_of
from metacount.huggingface.config.keys import Keys, words
from metacount.huggingface.config.parts import biases, divided

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import ast
    from collections.abc import Collection

    from metacount.algebra.text import Number
    from metacount.files import Json

MAX_CHARACTERS = 2**18  # of a file of assignments

GPT_CONFIG: Json = {
    "block_size": 1024,
    "vocab_size": 50304,
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "bias": True,
}
TRAIN = {**GPT_CONFIG, "bias": False}  # what train.py takes where a file says nothing
GPT2 = {**GPT_CONFIG, "vocab_size": 50257}
# What `init_from` takes the sizes of.
PUBLISHED = {
    "gpt2": GPT2,
    "gpt2-medium": {**GPT2, "n_layer": 24, "n_head": 16, "n_embd": 1024},
    "gpt2-large": {**GPT2, "n_layer": 36, "n_head": 20, "n_embd": 1280},
    "gpt2-xl": {**GPT2, "n_layer": 48, "n_head": 25, "n_embd": 1600},
}
RUN = words(
    "out_dir eval_interval log_interval eval_iters eval_only always_save_checkpoint wandb_log "
    "wandb_project wandb_run_name dataset gradient_accumulation_steps batch_size dropout "
    "learning_rate max_iters weight_decay beta1 beta2 grad_clip decay_lr warmup_iters "
    "lr_decay_iters min_lr backend device dtype compile"
)
NAMES = {"n_layers": "n_layer", "n_heads": "n_head"}
NAMES |= {"d_model": "n_embd", "n_positions": "block_size"}


def from_keys(data: Json) -> Described:
    """Read a GPTConfig, as a checkpoint's `model_args` holds it.

    >>> from_keys({"block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768}).spec.n_heads
    12
    """
    return _described(data, GPT_CONFIG, ("dropout",), ["nanoGPT's GPTConfig"])


def from_python(path: str) -> Described:
    """Read a config file of train.py: assignments, read as data."""
    text = read_text(path, "a config of nanoGPT's train.py")
    where = shown(path)
    if len(text) > MAX_CHARACTERS:
        limit = f"a config has at most {MAX_CHARACTERS}"
        raise InputError(f"{where}: has {len(text)} characters; {limit}")
    data = _assigned(text, where)
    if not data:
        fault = "assigns nothing that train.py of nanoGPT knows"
        raise InputError(f"{where}: {fault}; give a config of it ({MODULES})")
    start = data.pop("init_from", "scratch")
    notes = ["a config of nanoGPT's train.py: read, not run"]
    if start == "scratch":
        if "vocab_size" not in data:
            own = "train.py's own, where the data set brings no meta.pkl"
            notes.append(f"vocab_size {TRAIN['vocab_size']}: {own}; else --set vocab_size=N")
        return _described(data, TRAIN, RUN, notes)
    if start not in PUBLISHED:
        rule = "takes the sizes from elsewhere" if start == "resume" else "is none that is known"
        raise SpecError("init_from", rule, start, f"choose scratch, {', '.join(PUBLISHED)}")
    known = PUBLISHED[start]
    for name in ("n_layer", "n_head", "n_embd", "bias", "vocab_size"):
        if name in data and data[name] != known[name]:
            rule = f"is {known[name]} by init_from = {start}"
            raise SpecError(name, rule, data[name], "remove one of them")
    if (length := data.get("block_size", 0)) > known["block_size"]:
        rule = f"can only be cut from {known['block_size']} by init_from = {start}"
        raise SpecError("block_size", rule, length, "choose less")
    return _described(data, known, RUN, [*notes, f"init_from {start}: its sizes"])


def _described(data: Json, defaults: Json, ignored: Collection[str], notes: list[str]) -> Described:
    keys = Keys(data, {**defaults}, {}, "head")
    d_model, n_heads, bias = keys.size("n_embd"), keys.size("n_head"), keys.flag("bias")
    fields = {
        "kind": "decoder",
        "d_model": d_model,
        "n_layers": keys.layers("n_layer"),
        "vocab_size": keys.size("vocab_size"),
        "tie_embeddings": True,
        "n_heads": n_heads,
        "n_kv_heads": n_heads,
        "head_dim": divided("n_head", d_model, n_heads),
        **biases(bias, bias),
        "d_ff": 4 * d_model,
        "activation": "gelu",
        "gated": False,
        "ffn_bias": bias,
        "norm": "layernorm",
        "norm_bias": bias,
        "position": "learned",
        "n_positions": keys.size("block_size"),
    }
    # a name that only other tools give a meaning to is none of nanoGPT's
    for name in keys.data:
        if name not in keys.read and name not in ignored:
            remedy = nearest(name, [*GPT_CONFIG, *ignored], "remove it")
            raise SpecError(shown(name), "is not an argument of nanoGPT", keys.data[name], remedy)
    return Described(spec=spec_of(fields, NAMES), notes=tuple(notes))


def _assigned(text: str, where: str) -> Json:
    import ast
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of somebody else's escapes in texts
            tree = ast.parse(text)
    except SyntaxError as error:
        raise InputError(f"{where}: is not Python: line {error.lineno}: {error.msg}") from None
    except (RecursionError, MemoryError, ValueError):
        raise InputError(f"{where}: is nested too deeply; a config is flat assignments") from None
    values: Json = {}
    for step in tree.body:
        # nanoGPT's own configs import time, for the name of a run
        text_alone = isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant)
        if isinstance(step, ast.Import | ast.ImportFrom) or text_alone:
            continue
        line = f"{where}: line {step.lineno}"
        target = (
            step.targets[0] if isinstance(step, ast.Assign) and len(step.targets) == 1 else None
        )
        if not isinstance(step, ast.Assign) or not isinstance(target, ast.Name):
            remedy = f"give a config of nanoGPT's train.py ({MODULES})"
            raise InputError(f"{line}: is no assignment to a name, and nothing is run; {remedy}")
        name = target.id
        if name not in (*TRAIN, *RUN, "init_from"):
            remedy = nearest(name, [*TRAIN, *RUN, "init_from"], f"remove it ({MODULES})")
            fault = f"{shown(name)} is not an argument of nanoGPT's train.py"
            raise InputError(f"{line}: {fault}; {remedy}")
        values[name] = None if name in RUN else _value(step.value, text, values, f"{line}: {name}")
    return values


def _value(node: ast.expr, text: str, known: Json, where: str) -> object:
    import ast

    if isinstance(node, ast.Constant):
        return node.value
    from metacount.algebra.text import at, read

    numbers: dict[str, Number] = {n: v for n, v in known.items() if type(v) is int}
    try:
        formula = read(ast.get_source_segment(text, node) or "")
        number = at(formula.tree, numbers)
    except KeyError as error:
        raise InputError(f"{where}: {error.args[0]} is no number that is assigned before") from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return number if isinstance(number, int) else float(number)
