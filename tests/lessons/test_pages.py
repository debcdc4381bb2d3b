"""Every lesson in both languages: computed, complete, as wide as the screen, its answers right."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Any

import pytest
import torch
from helpers.command_line import Ask
from helpers.release import ONLY, daily
from helpers.structures import first_of_each

import metacount
from metacount import InputError, catalog, entry
from metacount.cli.lesson import Lesson, lesson
from metacount.cli.report import cells
from metacount.errors import SpecError
from metacount.languages import LANGUAGES, language_of
from metacount.spec import legend
from metacount.teaching import counts, lessons
from metacount.teaching.experiments import ffn, moe
from metacount.teaching.lessons import NAMES, TOPICS, Page, Source, page_of, source_of, text_in

# beside each lesson's own model, one that is built differently
OTHERS = dict.fromkeys(("block", "attention", "moe"), "deepseek-v3")
OTHERS |= {"embedding": "bert-base", "norm": "gemma2-2b", "ffn": "gpt-oss-20b"}
OTHERS |= {"position": "bloom-176b", "qwen3": "qwen3-235b-a22b", "paper": "gpt3-175b"}
OTHERS |= dict.fromkeys(("gpt", "compute"), "mixtral-8x7b")
CASES = [(t, lang, m) for t in TOPICS for lang in LANGUAGES for m in (None, OTHERS[t])]


Pages = dict[tuple[str, str, str | None], Page]


@pytest.fixture(scope="module")
def pages() -> Pages:
    return {(t, lang, m): page_of(t, m, lang) for t, lang, m in CASES}


def texts(page: Page) -> str:
    """Everything that a page says."""
    meanings = {term.meaning for term in legend.TERMS}  # of English, which has a rule's name in one
    rows = (cell for b in page.blocks for row in (b.heads, *b.rows) for cell in row)
    said = [cell for cell in rows if cell not in meanings]
    return "\n".join([page.title, *(b.text for b in page.blocks), *said])


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_page_fits_and_is_whole(
    pages: Pages, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for case, page in pages.items():
        lines = Lesson(page=page, answers=True).text.splitlines()
        # tables keep their numbers: below 80 columns they may be wider than the screen
        checked = lines if width >= 80 else [x for x in lines if not x.startswith("  ")]
        assert [(case, x) for x in checked if cells(x) > width] == []
        assert not any(x != x.rstrip() or "\x1b" in x or "\0" in x for x in lines)
        assert page.exercises and not re.search(r"\{\{|None|\bnan\b|\binf\b", texts(page)), case
        if (
            width == 80
        ):  # a mixture has most to show; a model with more kinds of parts has more rows
            assert 40 <= len(Lesson(page=page).text.splitlines()) <= 170


def test_both_languages_have_the_same_numbers(pages: Pages) -> None:
    for topic, _, given in CASES:
        both = [pages[topic, lang, given] for lang in LANGUAGES]
        # a language may say a number once more than the other, or have a paragraph more
        one, other = ({*re.findall(r"\d[\d,.]*\d|\d", texts(page))} for page in both)
        assert one == other, (topic, given)
        one, other = ([b.kind for b in p.blocks if b.kind != "paragraph"] for p in both)
        assert one == other, (topic, given)


@pytest.mark.parametrize("topic", TOPICS)
def test_every_definition_is_used_and_hides_nothing(topic: str) -> None:
    source = source_of(topic)
    written = [source.head["fits"], *source.definitions.values()]
    written += re.findall(r"\{(?:\? |each \w+ in )?([^{}]+)\}", source.text)
    # a name, not a function that is called
    used = {name for text in written for name in re.findall(r"\b(\w+)\b(?!\()", text)}
    assert source.definitions.keys() - used == set()
    assert source.definitions.keys() & NAMES.keys() == set()


def assert_answers(page: Page) -> None:
    """`check` finds each exercise's answer right, and another formula wrong."""
    for exercise in page.exercises:
        settings = [f"{name}={value}".lower() for name, value in exercise.changes.items()]
        changed = metacount.find_model(page.model, settings)
        for text, right in ((exercise.formula, True), (f"{exercise.formula} + d", False)):
            found = metacount.check(text, changed, quantity=exercise.quantity)
            assert found.holds is right, (exercise, found.verdict)


@daily(4)
@pytest.mark.parametrize("topic", TOPICS)
def test_the_answers_are_right(topic: str) -> None:
    assert_answers(page_of(topic))


# state-space layers alone, shared blocks, gated attention, prediction modules, convolutions
UNLIKE = ("mamba-2.8b", "zamba2-1.2b", "qwen3-next-80b-a3b", "deepseek-v3", "lfm2-1.2b")
STRUCTURES = [id if id in UNLIKE else pytest.param(id, marks=ONLY) for id in first_of_each()]


@daily(6)
@pytest.mark.parametrize("id", STRUCTURES)
def test_a_model_of_any_structure_has_its_page_or_is_refused(id: str) -> None:
    for topic in TOPICS:
        try:
            page = page_of(topic, id)
        except InputError as error:
            assert str(error).startswith(f"lesson {topic} "), error
            continue
        if id not in UNLIKE:  # seconds: with the other release tests
            assert_answers(page)


def test_the_numbers_are_those_of_the_model() -> None:
    page = page_of("block", "llama-7b")
    assert page.values["block"] == 4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096
    wider = page_of("block", "llama-7b", settings=["d_ff=11009"])
    assert wider.values["block"] - page.values["block"] == 3 * 4096


# A page's text that is wrong, or a wrong value by hand, in the place of what is there.
PLANTED = {
    "{nobody} knows": "nothing computes: got 'nobody'",
    "| a | b |\n| {name} |": "rows do not have the cells of its head",
}


@pytest.mark.parametrize("text", PLANTED)
def test_a_mistake_in_a_page_is_an_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    there = source_of("block")
    wrong = Source(head=there.head, definitions=there.definitions, text=f"# T\n\n{text}\n")
    monkeypatch.setattr(lessons, "source_of", lambda _: wrong)
    with pytest.raises(SpecError, match=PLANTED[text]):
        page_of("block")


def test_a_wrong_value_by_hand_ends_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**moe.by_hand(), "drouter": (0.0, 0.0, 0.0, 0.0)}
    monkeypatch.setattr(moe, "by_hand", lambda: wrong)
    monkeypatch.setitem(ffn.HAND, "silu", (lambda x: x, lambda x: 1.0))
    monkeypatch.setitem(counts.GROUPED, "o_proj", ("d", "d*h"))
    ffn.activations.cache_clear()
    for ask_of, said in (
        (lambda: page_of("moe"), "drouter: by hand"),
        (ffn.activations, "silu: by hand"),
        (lambda: counts.matrices(entry("llama-7b").spec()), "are not the"),
    ):
        with pytest.raises(AssertionError, match=said):
            ask_of()
    monkeypatch.undo()
    assert len(ffn.activations()) == len(ffn.POINTS)


# Names that have a digit. A closed list: whatever else has one must come from a placeholder.
DIGITS = ("GPT-2", "Qwen3", "bf16", "float64", "σ²", "x²", "两端", "t5")
WORDS = re.compile(
    r"\b(two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|twenty|thirty|hundreds?"
    r"|thousands?|millions?|billions?|twice|thrice|double[sd]?|triple|half|halves|thirds?"
    r"|quarters?)\b",
    re.IGNORECASE,
)
CHINESE = frozenset("二两三四五六七八九十百千万亿半双〇")


def typed_numbers(text: str) -> list[str]:
    """Every number of the prose, in digits of any script or in words, each with its line.

    A letter's index (W₁) is part of its name. "one" is an article as often as a number.
    """
    found = []
    for line in re.sub(r"\{.*?\}", "", text).splitlines():
        bare = line
        for name in DIGITS:
            bare = bare.replace(name, "")
        bare = re.sub("[₀-₉]", "", bare)
        digits = [c for c in bare if unicodedata.category(c) in ("Nd", "No", "Nl")]
        digits += [c for c in bare if c in CHINESE]
        digits += [word[0] for word in WORDS.finditer(bare)]
        found += [f"{each}: {line}" for each in digits]
    return found


@pytest.mark.parametrize("topic", TOPICS)
def test_every_number_of_the_prose_is_computed(topic: str) -> None:
    for lang in LANGUAGES:
        assert typed_numbers(text_in(source_of(topic).text, lang)) == []


@pytest.mark.parametrize("topic", TOPICS)
def test_a_line_and_its_translation_have_the_same_braces(topic: str) -> None:
    english, chinese = (
        re.sub(r"^\{(\?|each)[^{}]*\} ?", "", text_in(source_of(topic).text, lang), flags=re.M)
        for lang in LANGUAGES
    )
    braces = (set(re.findall(r"\{[^{}]*\}", text)) for text in (english, chinese))
    # what is said of a size in English is the legend's
    assert {it for it in next(braces) if not it.startswith("{meaning(")} == next(braces)
    for one, other in zip(english.splitlines(), chinese.splitlines(), strict=True):
        assert not any(c >= "\u4e00" for c in one)
        prose = re.search("[A-Za-z]{4,} [a-z]+ [a-z]+", re.sub(r"`[^`]*`|\{[^{}]*\}", "", one))
        assert not prose or any(c >= "\u4e00" for c in other), one


def test_a_typed_number_is_found() -> None:
    for planted in ("LLaMA has 7 billion", "It is ½ of that.", "two matrices", "共有三个矩阵。"):
        assert typed_numbers("# Title\n\n" + planted) != []
    assert typed_numbers("Qwen3 and GPT-2: {n} of {m:short}, W₁·x, x², one of them") == []


@pytest.mark.parametrize(
    ("environment", "encoding", "lang"),
    [
        ({}, "utf-8", "en"),
        ({"LANG": "zh_TW"}, "utf-8", "zh"),
        ({"LANG": "zhx_XX"}, "utf-8", "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "de_DE.UTF-8"}, "utf-8", "en"),
        ({"LANG": "de_DE.UTF-8", "LC_ALL": "zh_CN.GB18030"}, "gb18030", "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": ""}, "utf-8", "zh"),  # empty is not set
        ({"LANG": "zh_CN.UTF-8"}, "ascii", "en"),
        ({"LANG": "zh_CN.UTF-8"}, None, "zh"),
    ],
)
def test_the_terminal_says_the_language(
    environment: dict[str, str], encoding: str | None, lang: str
) -> None:
    assert language_of(environment, encoding) == lang


def test_a_changed_token_changes_its_own_output_alone() -> None:
    assert ffn.changes("ffn", 2, 5) == [2]
    assert ffn.changes("causal", 2, 5) == [2, 3, 4, 5]
    assert ffn.changes("open", 2, 5) == [1, 2, 3, 4, 5]


@daily(5)
@pytest.mark.parametrize("id", ["gpt2", "llama-7b", "gpt-oss-20b", "bloom-176b", "gemma2-9b"])
def test_the_steps_are_a_run(id: str) -> None:
    page = page_of("gpt", id)
    table = next(block.rows for block in page.blocks if block.kind == "table")
    spec = entry(id).spec()
    shapes = {row[0]: row[2] for row in table}
    run = metacount.count(id).workload
    scores = next(shape for name, shape in shapes.items() if name.startswith("scores = q·kᵀ"))
    assert scores == f"1×{spec.n_heads}×{run.seq_len}×{run.seq_len}"
    assert shapes["logits = x·W_headᵀ"] == f"1×{run.seq_len}×{spec.vocab_size}"
    # in order, without the words that would need a translation
    named = [row[0] for row in table]
    added = "x = x + norm(attn)" if id == "gemma2-9b" else "x = x + attn"
    first, second = (
        next(i for i, n in enumerate(named) if n.startswith(start))
        for start in ("scores = q·kᵀ", "out = weights·v")
    )
    assert first < second < named.index(added)
    assert [name for name in named if re.search("[a-z]{3,} [a-z]{2,}", name)] == []


def test_lessons_leave_the_random_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And never draw from it: it may be another thread's, even with a copy put back."""
    before = torch.random.get_rng_state()
    for name in ("manual_seed", "set_rng_state", "seed"):
        monkeypatch.setattr(torch.random, name, None)
        monkeypatch.setattr(torch, name, None)
    for topic in TOPICS:
        page_of(topic)
        assert torch.equal(before, torch.random.get_rng_state()), topic


def test_the_list_has_every_topic(ask: Ask) -> None:
    lines = ask("lesson --lang en").splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(TOPICS)]] == list(TOPICS)
    listed = ask.json("lesson --lang zh")
    assert [each["topic"] for each in listed] == list(TOPICS)
    assert set(listed[0]) >= {"topic", "title", "model"}


def test_text_markdown_and_json_say_the_same(ask: Ask) -> None:
    line = "lesson block --model llama-7b --lang en"
    data, text, markdown = ask.json(line), ask(line), ask(f"{line} --markdown")
    assert data["values"]["block"] == 202_383_360
    keys = {"topic", "lang", "model", "name", "changes", "title", "blocks", "values"}
    kinds = {"heading", "paragraph", "equation", "table", "exercise"}
    assert set(data) >= keys and {block["kind"] for block in data["blocks"]} == kinds
    assert all("202,383,360" in each and "metacount check" in each for each in (text, markdown))
    assert markdown.startswith("# The parameters of a block\n\n")
    assert "| q_proj | [h·h_d, d] | [4096, 4096] | 16,777,216 | 8.3 % |" in markdown
    assert "```sh\nmetacount check" in markdown


def test_answers_are_shown_when_asked_for(ask: Ask) -> None:
    hidden, shown = (ask(f"lesson moe --lang en {more}") for more in ("", "--answers"))
    assert 'metacount check "..." mixtral-8x7b' in hidden and "V*d" not in hidden
    assert 'metacount check "V*d + 2*N*d*h_d*(h + h_kv)' in shown and '"..."' not in shown


def test_the_model_of_the_readers_choice(ask: Ask, tiny: str) -> None:
    assert "61" in ask("lesson block --model deepseek-v3 --lang en")
    assert ask.json(f"lesson block --model {tiny} --lang en")["model"] == "tiny"
    text = ask("lesson ffn --model llama-7b --lang en --set d_ff=12345")
    assert "--set d_ff=12345" in text.splitlines()[1] and "12,345" in text


REFUSED = {
    "moee": "lesson 'moee' is not known; did you mean moe",
    "xyz": "choose one of block, embedding",
    "moe --model llama-7b": "needs a model with experts",
    "moe --model longcat-flash": "experts in the place of a feed-forward: longcat-",
    "norm --model longcat-flash": "needs a block with attention whose norms may stand",
    "block --model gemma-3n-e2b-text": "lesson block has no word for n_altup_inputs",
    "moe --model nobody-7b": "not in the catalog",
    "moe --lang fr": "--lang 'fr' is not known; choose one of en, zh",
    "moe --json --markdown": "leave one of them out",
    "--model llama-7b": "lesson needs TOPIC",
    "moe --set moe_latent_rank=512": "lesson moe has no word for moe_latent_rank of mixtral-8x7b",
    "block --set d_fff=3": "not a field of a model",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_wrong_request_is_one_line(ask: Ask, line: str) -> None:
    assert REFUSED[line] in ask.refused(f"lesson {line}")


def test_the_python_api() -> None:
    spec = metacount.entry("llama-7b").spec()
    found = metacount.lesson("block", spec, lang="zh")
    assert isinstance(found, metacount.Lesson)
    assert found.text.startswith("一个块的参数\n")
    assert found._repr_markdown_().startswith("# 一个块的参数\n")
    assert found.to_dict()["values"]["block"] == 202_383_360
    assert '"..." MODEL' in found.text  # a spec has no name to type
    with pytest.raises(metacount.InputError, match="attention"):
        metacount.lesson("atention")


# ---- true of every model: tables beside `tree` and `flow`


MODELS = [each.id for each in catalog.entries() if each.sizes is not None]


@cache
def page(topic: str, model: str) -> Page | None:
    """The lesson, or None where it refuses the model."""
    try:
        return lesson(topic, model, lang="en").page
    except (InputError, SpecError):
        return None


def table(found: Page, head: str) -> list[tuple[str, ...]]:
    """The rows of the first table whose head has that cell."""
    return list(next(b.rows for b in found.blocks if b.kind == "table" and head in b.heads))


def number(text: str) -> int:
    return int(text.replace(",", ""))


@cache
def nodes(model: str) -> list[dict[str, Any]]:
    """Every node of the model's tree, from the modules that were built."""
    found: list[dict[str, Any]] = []
    todo = [metacount.tree(model).to_dict()]
    while todo:
        node = todo.pop()
        found.append(node)
        todo += node["children"]
    return found


def last(model: str, name: str) -> dict[str, Any]:
    """The node of that name in the last block of the decoder."""
    of_blocks = [
        n for n in nodes(model) if n["path"].endswith(f".{name}") and ".layers." in n["path"]
    ]
    depth = min(n["path"].count(".") for n in of_blocks)
    outer = [n for n in of_blocks if n["path"].count(".") == depth]
    stack = [n for n in outer if not n["path"].startswith("encoder")] or outer
    return max(stack, key=lambda n: int(n["path"].split(".layers.")[1].split(".")[0]))


def blocks_of(model: str) -> list[dict[str, Any]]:
    return [n for n in nodes(model) if n["module"].endswith("Block") and ".layers." in n["path"]]


@daily(10)
@pytest.mark.parametrize("model", MODELS)
def test_attention(model: str) -> None:
    found = page("attention", model)
    if found is None:
        return
    spec = entry(model).spec()
    tree = last(model, "self_attn")
    kind = (
        "MLA" if spec.kv_lora_rank else {1: "MQA", spec.n_heads: "MHA"}.get(spec.n_kv_heads, "GQA")
    )
    rows = {row[0]: row for row in table(found, "h_kv")}
    own = rows[kind] if spec.n_heads > 1 else rows["MHA"]
    assert number(own[2]) == tree["params"]
    assert number(own[3]) == found.values["own"] or spec.kind == "prefix-decoder"
    steps = {row[0].partition(" = ")[0]: row for row in table(found, "letters")}
    ran = every_step(metacount.flow(model).to_dict()["steps"])
    shapes = {str(output["shape"]) for step in ran for output in step["outputs"]}
    for name in ("Q", "K", "V", "scores", "context"):
        assert steps[name][2] in shapes, name
    told = " ".join(row[0] for row in table(found, "letters"))
    computed = " ".join(step["equation"] or "" for step in ran)
    for sign in ("sink", "tanh(scores", "σ(gate)"):
        assert (sign in told) == (sign in computed), sign
    names = {n for node in tree["children"] for n in node["tensors"]} | {*tree["tensors"]}
    assert ("+ b_" in told) == any("bias" in n for n in names if "proj" in n or n == "bias")


def every_step(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for step in steps for each in (step, *every_step(step["steps"]))]


@daily(10)
@pytest.mark.parametrize("model", MODELS)
def test_block(model: str) -> None:
    found = page("block", model)
    if found is None:
        return
    rows = table(found, "matrix")
    blocks = {n["params"] for n in blocks_of(model)}
    assert number(rows[-1][3]) in blocks
    shapes = {str(list(s)) for n in nodes(model) for s in n["tensors"].values()}
    for name, _, shape, *_ in rows:
        if shape and "experts" not in name and "shared" not in name:
            assert shape in shapes, name


@daily(10)
@pytest.mark.parametrize("model", MODELS)
def test_mixture(model: str) -> None:
    found = page("moe", model)
    if found is None:
        return
    tree = last(model, "mlp")
    stored, used = (number(cell) for cell in table(found, "stored")[-1][1:])
    assert (stored, used) == (tree["params"], tree["active_params"])
    router = [n for n in tree["children"] if n["name"] in ("gate", "router")]
    rows = {row[0]: row for row in table(found, "stored")}
    own = next(row for name, row in rows.items() if name.startswith("router"))
    assert [number(own[1])] == [n["params"] for n in router]
    biased = any("bias" in t for n in router for c in (n, *n["children"]) for t in c["tensors"])
    steps = [row[0] for row in table(found, "letters")]
    assert any(step.endswith("+ b_r") for step in steps) == biased


@daily(10)
@pytest.mark.parametrize("model", MODELS)
def test_feed_forward(model: str) -> None:
    found = page("ffn", model)
    spec = entry(model).spec()
    if found is None or spec.is_moe or spec.d_ff_pattern:
        return
    assert number(table(found, "width")[-1][3]) == last(model, "mlp")["params"]


@daily(10)
@pytest.mark.parametrize("model", MODELS)
def test_ends_and_norms(model: str) -> None:
    ends, norms = page("embedding", model), page("norm", model)
    whole = metacount.tree(model).to_dict()["params"]
    if ends is not None:
        assert ends.values["params"] == whole
        assert ends.values["token_table"] in {n["params"] for n in nodes(model)} | {whole}
    if norms is not None:
        leaves = [n for n in nodes(model) if n["role"] == "norm" and not n["children"]]
        assert norms.values["norm_params"] == sum(n["all_params"] for n in leaves)


@daily(10)
@pytest.mark.parametrize("model", MODELS)
def test_compute(model: str) -> None:
    found = page("compute", model)
    if found is None:
        return
    rows = table(found, "role")
    assert sum(number(row[1]) for row in rows) == metacount.count(model).active_params


@pytest.mark.parametrize(
    ("model", "slowest", "factor"),
    [
        # base^(-62/64), which YaRN divides by its factor: 10000^(-0.96875)/40, 150000^(-0.96875)/32
        ("deepseek-v3", 10_000 ** (-62 / 64) / 40, None),
        ("gpt-oss-20b", 150_000 ** (-62 / 64) / 32, "1.347"),
        # Llama 3.1 divides by 8 what turns less than once in 8,192 positions
        ("llama3.1-405b", 500_000 ** (-126 / 128) / 8, None),
        ("llama-7b", 10_000 ** (-126 / 128), None),
    ],
)
def test_angles_are_those_of_the_models_own_rope(
    model: str, slowest: float, factor: str | None
) -> None:
    found = page("position", model)
    assert found is not None
    *_, (_, angle, _) = table(found, "angle per position")
    assert float(angle) == pytest.approx(slowest, rel=1e-3)
    text = " ".join(block.text for block in found.blocks if block.text)
    assert ("also grow by" in text) is (factor is not None) and (factor or "") in text
