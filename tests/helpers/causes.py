"""Whether what `check` says of a wrong formula names its true causes, and nothing else.

A case of `cases/*.json` has its causes as `kind: of what`; the kinds are the functions below. A
formula that begins with `lambda` is a function.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from helpers import ROOT
from metacount import Workload, check, find_model

Case = dict[str, Any]

RIGHT, OPEN, MISLEADING = "right", "not accounted for", "misleading"
ONE_SIZE = re.compile(r"[qkvo]_proj")  # of one size where n_kv_heads = n_heads
# A fact, and true wherever the terms sum: it names no mistake, so it is never right alone either.
NO_CAUSE = re.compile(r"^a factor of \d+ too (much|little)$")
# What a part may be called. Parts of one size cannot be told apart by a count.
PARTS = {
    "embedding": "embedding|output head",
    "head": "output head|embedding",
    "positions": "position table",
    "relative position": "relative position",
    "q": "q_proj|the attention projections",
    "k": "k_proj|the attention projections",
    "v": "v_proj|the attention projections",
    "o": "o_proj|the attention projections",
    "attention": "the attention projections|q_proj",
    "cross-attention": "cross-attention",
    "q_a": "q_a_proj",
    "q_b": "q_b_proj",
    "kv_a": "kv_a_proj",
    "kv_b": "kv_b_proj",
    "ffn": "FFN|feed-forward",
    # a group is named for its parts only where it is all of them: the terms have to sum
    "router": "router|the feed-forward",
    "experts": "routed experts|the feed-forward",
    "shared": "shared expert|the feed-forward",
    "block norms": "norms",
    "final norm": "final norm|all norms|norm",
    "embedding norm": "after the embedding|final norm",
    "latent norms": "latent",
    "norms": "norm",
    "qk norm": "QK-norm",
    "biases": "bias",
    "qkv bias": "bias",
    "o bias": "bias",
    "ffn bias": "bias|norm",
    "sinks": "sinks",
    "router bias": "router bias",
    "expert bias": "experts' biases",
    "head bias": "bias of the head",
    "scores": "scores|sums of values",
    "values": "scores|sums of values",
    "scores of the rotated keys": "scores of the rotated keys",
    "keys": "keys|values",
    "cached values": "keys|values",
    "latents": "latents",
    "rotated keys": "rotated keys",
}


# One size of a mixture in the other one's place, in words of its own.
BETWEEN = {
    "top_k n_experts": "for the active (experts|ones) only",
    "n_experts top_k": "all experts are counted",
}


def has(words: str, *patterns: str) -> bool:
    """Whether every pattern is in the words."""
    return all(re.search(pattern, words) for pattern in patterns)


def _part(names: str) -> str:
    return "|".join(PARTS[name] for name in names.split("|"))


def _instead(words: str, names: str) -> bool:
    if names in BETWEEN and has(words, BETWEEN[names]):
        return True
    options = [option.split() for option in names.split("|")]
    return any(
        has(
            words,
            *(rf"(?<!\w){name}(?!\w)" if name[0].isalpha() else re.escape(name) for name in option),
        )
        for option in options
    )


def _factor(words: str, number: str) -> bool:
    above, _, below = number.partition("/")
    # keys and values are of one size: twice, or half, of both is the same as of the count
    twice = number == "2" and has(words, "^keys and values counted twice")
    half = number == "1/2" and has(words, "^one of keys and values left out")
    return twice or half or has(words, rf"factor of {below or above}\b")


def _number(words: str, what: str) -> bool:
    name, number = what.split()
    if has(words, rf"(?<!\w){name}(?!\w)", rf"(?<!\w){number}(?!\w)"):
        return True
    # a factor of 1 is none; one expert more for each token is top_k + 1
    other = {"1": rf"not multiplied by {name}(?!\w)", "top_k": "one expert too (many|few)"}
    return (what == "bytes_per_value 1" and has(words, "values, not bytes")) or any(
        has(words, other[one]) for one in (name, number) if one in other
    )


SAYS: dict[str, Callable[[str, str], bool]] = {
    "left out": lambda words, part: has(words, _part(part), "left out|keys or values only"),
    # 2·B·S·V·d may be the head once more or the embedding as if it were multiplied with
    "twice": lambda words, part: has(words, _part(part), "twice|three times|too often|looked up"),
    # half of four tensors of one size is two of them
    "half": lambda words, part: has(words, _part(part), "half|halved|one of|two of"),
    "number": lambda words, what: any(_number(words, one) for one in what.split("|")),
    "instead": _instead,
    "factor": _factor,
    "phrase": lambda words, pattern: has(words, pattern),
}


def says(words: str, cause: str) -> bool:
    """Whether the words of a term name a cause."""
    kind, _, what = cause.partition(": ")
    return SAYS[kind](words, what)


def outcome(case: Case, **options: Any) -> tuple[str, list[str]]:
    """Right, not accounted for or misleading; and what was said."""
    workload = Workload(seq_len=case.get("seq", 2048))
    text = case["formula"]
    formula = eval(text) if text.startswith("lambda") else text
    result = check(formula, case["model"], quantity=case["quantity"], workload=workload)
    assert result.verdict == "wrong", case
    assert sum(term.value for term in result.terms) == result.difference_value, case
    spec = find_model(case["model"]).spec
    equal = spec.attention == "gqa" and spec.n_heads == spec.n_kv_heads
    said = [
        ONE_SIZE.sub("q_proj k_proj v_proj o_proj", term.words) if equal else term.words
        for term in result.terms
        if term.known and term.value
    ]
    left = [term for term in result.terms if not term.known]
    lines = [f"{term.value} {term.words}" for term in result.terms]
    also = case.get("also", [])  # other words for the same sum, as simple
    if any(words in also for words in said) and not left:
        return RIGHT, lines
    if any(
        not NO_CAUSE.search(words) and not any(says(words, cause) for cause in case["causes"])
        for words in said
    ):
        return MISLEADING, lines
    named = all(any(says(words, cause) for words in said) for cause in case["causes"])
    return (RIGHT if named and not left else OPEN), lines


def cases(*names: str) -> list[Case]:
    """The cases of some files."""
    folder = ROOT / "tests" / "check" / "cases"
    return [
        case for name in names for case in json.loads((folder / f"{name}.json").read_text("utf-8"))
    ]


if __name__ == "__main__":  # the three rates over every case
    from collections import Counter

    for path in sorted((ROOT / "tests" / "check" / "cases").glob("*.json")):
        found = Counter(outcome(case)[0] for case in cases(path.stem))
        print(path.stem, dict(found))
