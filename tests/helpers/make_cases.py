"""Makes wrong formulas whose causes are known because they were put in: `python make_cases.py`.

A right formula is a list of summands, written here from the papers and not taken from the judge;
mistakes change it. `cases/made.json` is what the explanations were improved on,
`cases/held_out.json` comes from other models and other draws and was not looked at for that.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

from helpers import ROOT
from metacount import find_model
from metacount.spec import ModelSpec

Summand = tuple[str, str, str]  # what it is, its number of layers, its size
Case = dict[str, Any]

CASES = ROOT / "tests" / "check" / "cases"
TUNED = [
    "llama-7b",
    "llama3.1-405b",
    "gpt2",
    "gemma-2b",
    "mixtral-8x7b",
    "deepseek-moe-16b",
    "deepseek-v3",
    "qwen3-235b-a22b",
    "qwen3-32b",
    "bloom-176b",
    "falcon-180b",
    "mpt-30b",
    "glm-4.5",
    "qwen2-7b",
    "gpt-oss-20b",
]
HELD_OUT = [
    "llama-13b",
    "llama3-8b",
    "llama3-70b",
    "gpt2-xl",
    "gemma-7b",
    "deepseek-v2",
    "qwen3-0.6b",
    "qwen3-8b",
    "qwen1.5-72b",
    "olmo2-7b",
    "pythia-12b",
    "gpt3-175b",
    "smollm2-135m",
    "yi-34b",
    "palm-540b",
    "phi3.5-moe",
    "opt-175b",
]
THIRD = [
    "llama-33b",
    "llama-65b",
    "gpt2-medium",
    "gpt2-large",
    "qwen2-72b",
    "qwen2.5-32b",
    "qwen3-4b",
    "deepseek-v3",
    "glm-4.5",
    "mixtral-8x7b",
    "internlm2-20b",
    "smollm2-1.7b",
    "deepseek-67b",
    "qwen3-14b",
    "qwen3-1.7b",
]
FOURTH = [
    "baichuan2-13b",
    "galactica-120b",
    "granite-4.0-micro",
    "jurassic1-178b",
    "llama2-70b",
    "llama4-scout-text",
    "mistral-7b",
    "mt-nlg-530b",
    "olmo2-13b",
    "olmo2-1b",
    "qwen2-0.5b",
    "qwen2.5-3b",
    "smollm3-3b",
    "yulan-12b",
]
OURS = {
    "d": "d_model",
    "N": "n_layers",
    "h": "n_heads",
    "h_kv": "n_kv_heads",
    "h_d": "head_dim",
    "V": "vocab_size",
    "m": "d_ff",
    "m_e": "d_ff_expert",
    "E": "n_experts",
    "k": "top_k",
    "E_s": "n_shared_experts",
    "N_0": "n_dense_layers",
    "P": "n_positions",
    "S": "seq_len",
    "B": "batch_size",
    "T": "kv_len",
    "c": "bytes_per_value",
    "d_c": "kv_lora_rank",
    "r_q": "q_lora_rank",
    "d_n": "qk_nope_head_dim",
    "d_r": "qk_rope_head_dim",
    "d_v": "v_head_dim",
}
QUANTITIES = (
    "params",
    "active_params",
    "matmul_flops",
    "causal_matmul_flops",
    "decode_matmul_flops",
    "kv_cache_bytes",
)


def matrices(spec: ModelSpec, *, active: bool) -> list[Summand]:
    """Every matrix of the blocks."""
    found: list[Summand] = []
    if spec.attention == "mla":
        q = [("q_a", "d*r_q"), ("q_b", "r_q*h*(d_n + d_r)")]
        found += [(name, "N", size) for name, size in q]
        found += [
            ("kv_a", "N", "d*(d_c + d_r)"),
            ("kv_b", "N", "d_c*h*(d_n + d_v)"),
            ("o", "N", "h*d_v*d"),
        ]
    else:
        found += [
            ("q", "N", "d*h*h_d"),
            ("k", "N", "d*h_kv*h_d"),
            ("v", "N", "d*h_kv*h_d"),
            ("o", "N", "h*h_d*d"),
        ]
    inner = 3 if spec.gated else 2
    if spec.d_ff is not None:
        found.append(("ffn", "N_0" if spec.n_dense_layers else "N", f"{inner}*d*m"))
    if spec.is_moe:
        layers = "(N - N_0)" if spec.n_dense_layers else "N"
        found.append(("router", layers, "d*E"))
        found.append(("experts", layers, f"{'k' if active else 'E'}*{inner}*d*m_e"))
        if spec.n_shared_experts:
            found.append(("shared", layers, f"E_s*{inner}*d*m_e"))
    return found


def params(spec: ModelSpec, quantity: str) -> list[Summand]:
    """Every tensor of a decoder."""
    found = [("embedding", "", "V*d")]
    if not spec.tie_embeddings:
        found.append(("head", "", "V*d"))
    if spec.position == "learned":
        found.append(("positions", "", "P*d"))
    found += matrices(spec, active=quantity == "active_params")
    one = 2 if spec.norm_bias else 1
    block = {"parallel": 1}.get(spec.norm_placement, 2)
    found.append(("block norms", "N", f"{one * block}*d"))
    found.append(("final norm", "", "2*d" if spec.norm_bias else "d"))
    if spec.embedding_norm:
        found.append(("embedding norm", "", f"{one}*d"))
    if spec.attention == "mla":
        found += [("latent norms", "N", "(d_c + r_q)")]
    if spec.qk_norm == "head":
        found.append(("qk norm", "N", "2*h_d"))
    if spec.qk_norm == "full":
        found.append(("qk norm", "N", "(h + h_kv)*h_d"))
    if spec.q_bias:
        found.append(("qkv bias", "N", "(h + 2*h_kv)*h_d"))
    if spec.o_bias:
        found.append(("o bias", "N", "d"))
    if spec.attention_sinks:
        found.append(("sinks", "N", "h"))
    if spec.ffn_bias and spec.d_ff is not None:
        found.append(("ffn bias", "N", "(m + d)"))
    if spec.router_bias:
        found.append(("router bias", "N", "E"))
    if spec.expert_bias:
        used = "k" if quantity == "active_params" else "E"
        found.append(("expert bias", "N", f"{used}*(2*m_e + d)"))
    if spec.head_bias:
        found.append(("head bias", "", "V"))
    return found


def flops(spec: ModelSpec, quantity: str) -> list[Summand]:
    """Every matrix product of a decoder without windows."""
    decode = quantity == "decode_matmul_flops"
    tokens = "2*B" if decode else "2*B*S"
    found = [
        (name, layers, f"{tokens}*{size}") for name, layers, size in matrices(spec, active=True)
    ]
    pairs = {
        "matmul_flops": "S**2",
        "causal_matmul_flops": "(S*(S + 1)/2)",
        "decode_matmul_flops": "T",
    }[quantity]
    if spec.attention == "mla":
        score, value = ("(d_c + d_r)", "d_c") if decode else ("(d_n + d_r)", "d_v")
    else:
        score = value = "h_d"
    found += [("scores", "N", f"2*B*{pairs}*h*{score}"), ("values", "N", f"2*B*{pairs}*h*{value}")]
    return [*found, ("head", "", f"{tokens}*V*d")]


def cache(spec: ModelSpec, quantity: str) -> list[Summand]:
    """What a decoder without windows keeps."""
    if spec.attention == "mla":
        return [("latents", "N", "B*S*c*d_c"), ("rotated keys", "N", "B*S*c*d_r")]
    return [("keys", "N", "B*S*c*h_kv*h_d"), ("cached values", "N", "B*S*c*h_kv*h_d")]


def right(spec: ModelSpec, quantity: str) -> list[Summand]:
    """The summands of the right formula."""
    if quantity in ("params", "active_params"):
        return params(spec, quantity)
    return cache(spec, quantity) if quantity == "kv_cache_bytes" else flops(spec, quantity)


def text(summands: list[Summand], style: int) -> str:
    """The formula: flat, or what has the same number of layers taken together."""
    if style % 2:
        groups: dict[str, list[str]] = {}
        for _, layers, size in summands:
            groups.setdefault(layers, []).append(size)
        terms = [
            f"{layers}*({' + '.join(sizes)})" if layers else " + ".join(sizes)
            for layers, sizes in groups.items()
        ]
    else:
        terms = [f"{layers}*{size}" if layers else size for _, layers, size in summands]
    whole = " + ".join(terms)
    names = OURS if style // 2 == 1 else {}
    return re.sub(r"[A-Za-z]\w*", lambda found: names.get(found[0], found[0]), whole)


def replaced(size: str, letter: str, other: str) -> str:
    """A letter of a size written as something else."""
    return re.sub(rf"(?<!\w){letter}(?!\w)", other, size)


PROJECTIONS = {"q", "k", "v", "o"}
Changed = tuple[list[Summand], list[str]] | None
Mistake = Callable[[list[Summand], ModelSpec, random.Random], Changed]


def left_out(summands: list[Summand], spec: ModelSpec, draw: random.Random) -> Any:
    """One summand is missing."""
    if len(summands) < 2:
        return None
    i = draw.randrange(len(summands))
    return [*summands[:i], *summands[i + 1 :]], [f"left out: {summands[i][0]}"]


def twice(summands: list[Summand], spec: ModelSpec, draw: random.Random) -> Any:
    """One summand is there twice."""
    one = draw.choice(summands)
    return [*summands, one], [f"twice: {one[0]}"]


LITERALS = {
    "N": (-8, -4, -2, -1, 1, 2, 4),
    "V": (-257, -7, 47, 64, 1000),
    "E": (-2, 4, 8, 56),
    "k": (-1, 1, 2, 3),
    "m": (-256, 128, 512),
    "m_e": (-128, 64, 512),
    "d": (-64, 64, 256),
    "h": (-4, 4, 8),
    "h_kv": (1, 2, 4, 8),
    "h_d": (-16, 16, 32, 64),
    "S": (-48, 48, 1024),
    "c": (-1, 2, 6),
    "d_c": (-64, 64),
    "d_r": (-16, 16, 32),
    "P": (1, 2, -24),
}


def literal(summands: list[Summand], spec: ModelSpec, draw: random.Random) -> Any:
    """A wrong number in a size's place, everywhere or in one summand."""
    sizes = [a for a in LITERALS if any(letters(s, a) for s in summands)]
    letter = draw.choice(sizes)
    name = OURS[letter]
    here = {"S": 2048, "c": 2}.get(letter) or getattr(spec, name)
    number = here + draw.choice(LITERALS[letter])
    if number < 1 or number == here:
        return None
    found = [i for i, s in enumerate(summands) if letters(s, letter)]
    chosen = found if draw.random() < 0.6 else [draw.choice(found)]
    changed = [
        (n, replaced(a, letter, str(number)), replaced(b, letter, str(number)))
        if i in chosen
        else (n, a, b)
        for i, (n, a, b) in enumerate(summands)
    ]
    return changed, [f"number: {name} {number}"]


def letters(summand: Summand, letter: str) -> bool:
    """Whether a summand has the letter."""
    return replaced(summand[1] + " " + summand[2], letter, "") != summand[1] + " " + summand[2]


SWAPS = [
    ("h_kv", "h", "n_heads n_kv_heads"),
    ("h", "h_kv", "n_kv_heads n_heads"),
    ("h_d", "(d/h)", "d_model n_heads head_dim"),
    ("m_e", "m", "d_ff d_ff_expert"),
    ("m", "m_e", "d_ff_expert d_ff"),
    ("(N - N_0)", "N", "phrase: every layer|n_layers"),
    ("N_0", "N", "n_layers n_dense_layers"),
    ("m", "(4*d)", "4 d_model d_ff"),
    ("m", "(8*d/3)", "8 d_model d_ff"),
    ("m_e", "(4*d)", "4 d_model d_ff_expert"),
    ("k", "(k + E_s)", "phrase: top_k|shared experts.*counted twice|one expert too many"),
    ("E", "k", "top_k n_experts"),
    ("k", "E", "n_experts top_k"),
    ("d_n", "d_v", "v_head_dim qk_nope_head_dim"),
    ("d_c", "r_q", "q_lora_rank kv_lora_rank"),
    ("h_d", "d", "d_model head_dim"),
    ("k", "1", "top_k"),
    ("E", "(E - 1)", "phrase: n_experts|one expert too few|norms"),
    ("N", "(N - 1)", "n_layers|layer"),
    ("N", "(N + 1)", "n_layers|layer"),
    ("S", "1", "seq_len"),
    ("S**2", "S", "seq_len"),
    ("B", "1", "batch_size"),
    ("c", "1", "bytes"),
    ("E_s", "1", "n_shared_experts"),
    ("d_r", "h*d_r", "n_heads"),
    ("V", "(V + 1)", "phrase: vocab_size|final norm"),
    ("E_s", "E", "n_experts n_shared_experts"),
    ("3", "2", "phrase: expert|FFN|feed-forward"),
    ("2", "3", "phrase: FFN|third matrix"),
]


def swapped(summands: list[Summand], spec: ModelSpec, draw: random.Random) -> Any:
    """One size in another's place, everywhere or in one summand."""
    fit = []
    for ours, other, words in SWAPS:
        has = [i for i, summand in enumerate(summands) if changed_by(summand, ours, other)]
        free = all(
            getattr(spec, OURS[a], None) or a in "SBTc" for a in re.findall(r"[A-Za-z]\w*", other)
        )
        if has and free:
            fit.append((ours, other, words, has))
    ours, other, words, has = draw.choice(fit)
    chosen = has if draw.random() < 0.6 or ours == "N" else [draw.choice(has)]
    changed = [
        (changed_by(s, ours, other) or s) if i in chosen else s for i, s in enumerate(summands)
    ]
    none = [name for name, layers, _ in changed if layers == "(N - N)"]  # 0: no layers are left
    if none:
        return changed, [f"left out: {name}" for name in none]
    return changed, [words if ": " in words else "instead: " + words]


def changed_by(summand: Summand, ours: str, other: str) -> Summand | None:
    """The summand with `other` for `ours`; None where it has no such thing."""
    name, layers, size = summand
    if ours in ("2", "3"):
        new = (name, layers, size.replace(f"{ours}*d*m", f"{other}*d*m"))
    elif ours == "(N - N_0)":
        new = (name, layers.replace(ours, other), size)
    elif ours == "N":
        new = (name, other if layers == "N" else layers, size)
    elif ours == "S**2":
        new = (name, layers, size.replace(ours, other))
    else:
        new = (name, replaced(layers, ours, other), replaced(size, ours, other))
    return None if new == summand else new


def halved(summands: list[Summand], spec: ModelSpec, draw: random.Random) -> Any:
    """Half of one summand, or the mask's half where it does not belong."""
    i = draw.randrange(len(summands))
    name, layers, size = summands[i]
    changed = [*summands]
    changed[i] = (name, layers, size + "/2")
    return changed, [f"half: {name}"]


def whole_factor(summands: list[Summand], spec: ModelSpec, draw: random.Random) -> Any:
    """All of it times a number."""
    number = draw.choice(["1/2", "2", "3"])
    changed = [(n, layers, f"{size}*{number}") for n, layers, size in summands]
    return changed, [f"factor: {number}"]


def counted_too(summands: list[Summand], spec: ModelSpec, draw: random.Random) -> Any:
    """What the model has not."""
    if summands[0][0] != "embedding":
        return None
    extra = []
    if not spec.q_bias and spec.attention == "gqa":
        extra.append((("x", "N", "(h + 2*h_kv)*h_d"), "phrase: bias"))
    if not spec.norm_bias:
        extra.append((("x", "", "(2*N + 1)*d"), "phrase: norm"))
    if spec.tie_embeddings:
        extra.append((("x", "", "V*d"), "twice: embedding"))
    if not extra:
        return None
    summand, cause = draw.choice(extra)
    return [*summands, summand], [cause]


MISTAKES: list[Mistake] = [
    left_out,
    twice,
    literal,
    literal,
    swapped,
    swapped,
    swapped,
    halved,
    whole_factor,
    counted_too,
]


def made(models: list[str], n: int, seed: int, multiple: tuple[int, ...]) -> list[Case]:
    """`n` wrong formulas of these models, with one or more mistakes each."""
    draw, found, seen = random.Random(seed), list[Case](), set[str]()
    while len(found) < n:
        model = draw.choice(models)
        spec = find_model(model).spec
        quantity = draw.choice(QUANTITIES) if draw.random() < 0.6 else "params"
        if spec.window is not None and quantity not in ("params", "active_params"):
            continue
        summands, causes, touched = right(spec, quantity), list[str](), set[Any]()
        wanted = draw.choice(multiple)
        for _ in range(wanted):
            change = draw.choice([m for m in MISTAKES if wanted == 1 or m is not whole_factor])
            result = change(summands, spec, draw)
            now = set() if result is None else {*result[0]} ^ {*summands}
            names = {name for name, _, _ in now} or (
                {result[0][-1][0]} if result is not None else set()
            )
            # two mistakes in the projections are often the same as one
            both = names & PROJECTIONS and touched & PROJECTIONS
            if result is not None and not names & touched and not both:
                # what changes nothing at these sizes is no cause
                same = value(result[0], model, quantity) == value(summands, model, quantity)
                told = [] if same else result[1]
                summands, causes, touched = result[0], [*causes, *told], touched | names
        formula = text(summands, draw.randrange(4))
        if not 0 < len(causes) <= wanted or formula in seen or not wrong(formula, model, quantity):
            continue
        seen.add(formula)
        found.append({"model": model, "quantity": quantity, "formula": formula, "causes": causes})
    return found


def value(summands: list[Summand], model: str, quantity: str) -> object:
    """The value of a formula at the model's own sizes."""
    spec = find_model(model).spec
    sizes = {letter: getattr(spec, name, None) for letter, name in OURS.items()}
    # what `wrong` compares at: one sequence of 2,048, two bytes
    return eval(
        text(summands, 0),  # our own text
        {**sizes, "B": 1, "S": 2048, "T": 2048, "c": 2},
    )


def wrong(formula: str, model: str, quantity: str) -> bool:
    """Whether the formula is wrong at the model's own sizes, and at the length of `outcome`."""
    from metacount import Workload, check

    workload = Workload(seq_len=2048)
    return check(formula, model, quantity=quantity, workload=workload).verdict == "wrong"


def write(name: str, cases: list[Case]) -> None:
    """One case a line."""
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (CASES / name).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    write("made.json", made(TUNED, 170, 1, (1, 1, 1, 2, 2, 3, 4)))
    write("third.json", made(THIRD, 150, 3, (1, 1, 1, 2, 2, 3, 4)))
    write("fourth.json", made(FOURTH, 190, 903, (1, 1, 1, 2, 2, 3, 4)))
    write("held_out.json", made(HELD_OUT, 150, 2, (1, 1, 1, 2, 2, 3, 4)))
