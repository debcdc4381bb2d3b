"""Every lesson in both languages: computed, complete, as wide as the screen, its answers right."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unicodedata

import pytest
import torch
from helpers.command_line import refused, run, run_json
from helpers.release import ONLY, daily
from helpers.structures import first_of_each

import metacount
from metacount.catalog import entry
from metacount.cli.lesson import Lesson
from metacount.cli.report import cells
from metacount.errors import InputError, SpecError
from metacount.languages import LANGUAGES, language_of
from metacount.spec import legend
from metacount.teaching import counts, lessons
from metacount.teaching.experiments import ffn, moe
from metacount.teaching.lessons import NAMES, TOPICS, Page, Source, page_of, source_of, text_in

# beside each lesson's own model, one that is built differently
OTHERS = {
    "block": "deepseek-v3",
    "embedding": "bert-base",
    "norm": "gemma2-2b",
    "ffn": "gpt-oss-20b",
    "position": "bloom-176b",
    "attention": "deepseek-v3",
    "moe": "deepseek-v3",
    "qwen3": "qwen3-235b-a22b",
    "gpt": "mixtral-8x7b",
    "compute": "mixtral-8x7b",
    "paper": "gpt3-175b",
}
CASES = [(t, lang, m) for t in TOPICS for lang in LANGUAGES for m in (None, OTHERS[t])]


@pytest.fixture(scope="module")
def pages() -> dict[tuple[str, str, str | None], Page]:
    return {(t, lang, m): page_of(t, m, lang) for t, lang, m in CASES}


def texts(page: Page) -> str:
    """Everything that a page says."""
    meanings = {term.meaning for term in legend.TERMS}  # of English, which has a rule's name in one
    cells_ = [
        c for b in page.blocks for row in (b.heads, *b.rows) for c in row if c not in meanings
    ]
    return "\n".join([page.title, *(b.text for b in page.blocks), *cells_])


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_page_fits(
    pages: dict[tuple[str, str, str | None], Page], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for case, page in pages.items():
        lines = Lesson(page=page, answers=True).text.splitlines()
        # tables keep their numbers: below 80 columns they may be wider than the screen
        checked = lines if width >= 80 else [x for x in lines if not x.startswith("  ")]
        assert [(case, x) for x in checked if cells(x) > width] == []
        assert [x for x in lines if x != x.rstrip()] == []
        assert not any("\x1b" in x or "\0" in x for x in lines)


def test_a_page_is_a_page(
    pages: dict[tuple[str, str, str | None], Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for case, page in pages.items():
        # a mixture has most to show; a model with more kinds of parts has more rows
        assert 40 <= len(Lesson(page=page).text.splitlines()) <= 170
        assert page.exercises, case
        assert "{{" not in texts(page), case
        assert "None" not in texts(page), case
        assert not re.search(r"\bnan\b|\binf\b", texts(page)), case


def test_both_languages_have_the_same_numbers(
    pages: dict[tuple[str, str, str | None], Page],
) -> None:
    for topic, _, given in CASES:
        one, other = (pages[topic, lang, given] for lang in LANGUAGES)
        numbers = [sorted(re.findall(r"\d[\d,.]*\d|\d", texts(page))) for page in (one, other)]
        # a language may say a number once more than the other
        assert set(numbers[0]) == set(numbers[1]), (topic, given)
        assert [b.kind for b in one.blocks if b.kind != "paragraph"] == [
            b.kind for b in other.blocks if b.kind != "paragraph"
        ]


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
        found = metacount.check(exercise.formula, changed, quantity=exercise.quantity)
        assert found.holds, (exercise, found.verdict)
        wrong = metacount.check(exercise.formula + " + d", changed, quantity=exercise.quantity)
        assert not wrong.holds


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


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("# T\n\n{nobody} knows\n", "nothing computes: got 'nobody'"),
        ("# T\n\n| a | b |\n| {name} |\n", "rows do not have the cells of its head"),
    ],
)
def test_a_mistake_in_a_page_is_an_error(
    monkeypatch: pytest.MonkeyPatch, text: str, match: str
) -> None:
    source = source_of("block")
    changed = Source(head=source.head, definitions=source.definitions, text=text)
    monkeypatch.setattr(lessons, "source_of", lambda _: changed)
    with pytest.raises(SpecError, match=match):
        page_of("block")


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


def test_a_wrong_step_by_hand_ends_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**moe.by_hand(), "drouter": (0.0, 0.0, 0.0, 0.0)}
    monkeypatch.setattr(moe, "by_hand", lambda: wrong)
    with pytest.raises(AssertionError, match="drouter: by hand"):
        page_of("moe")


def test_a_wrong_formula_by_hand_ends_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    ffn.activations.cache_clear()
    monkeypatch.setitem(ffn.HAND, "silu", (lambda x: x, lambda x: 1.0))
    with pytest.raises(AssertionError, match="silu: by hand"):
        ffn.activations()
    monkeypatch.undo()
    assert len(ffn.activations()) == len(ffn.POINTS)


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


def test_matrices_that_formulas_do_not_count_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(counts.GROUPED, "o_proj", ("d", "d*h"))
    with pytest.raises(AssertionError, match="are not the"):
        counts.matrices(entry("llama-7b").spec())


def test_lessons_leave_the_random_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And never draw from it: it may be another thread's, even with a copy put back."""
    before = torch.random.get_rng_state()
    for name in ("manual_seed", "set_rng_state", "seed"):
        monkeypatch.setattr(torch.random, name, None)
        monkeypatch.setattr(torch, name, None)
    for topic in TOPICS:
        page_of(topic)
        assert torch.equal(before, torch.random.get_rng_state()), topic


ANALYTIC = ("block", "embedding", "qwen3", "compute", "paper")


def test_the_list_has_every_topic(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "lesson", "--lang", "en")
    assert [line.split()[0] for line in text.splitlines()[1 : 1 + len(TOPICS)]] == list(TOPICS)
    listed = json.loads(run(capsys, "lesson", "--lang", "zh", "--json"))
    assert [each["topic"] for each in listed] == list(TOPICS)
    assert set(listed[0]) >= {"topic", "title", "model"}


def test_text_markdown_and_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("lesson", "block", "--model", "llama-7b", "--lang", "en")
    data = run_json(capsys, *arguments)
    assert data["values"]["block"] == 202_383_360
    keys = {"topic", "lang", "model", "name", "changes", "title", "blocks", "values"}
    assert set(data) >= keys
    kinds = {block["kind"] for block in data["blocks"]}
    assert kinds == {"heading", "paragraph", "equation", "table", "exercise"}
    for text in (run(capsys, *arguments), run(capsys, *arguments, "--markdown")):
        assert "202,383,360" in text
        assert "metacount check" in text
    markdown = run(capsys, *arguments, "--markdown")
    assert markdown.startswith("# The parameters of a block\n\n")
    assert "| q_proj | [h·h_d, d] | [4096, 4096] | 16,777,216 | 8.3 % |" in markdown
    assert "```sh\nmetacount check" in markdown


def test_answers_are_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    hidden = run(capsys, "lesson", "moe", "--lang", "en")
    shown = run(capsys, "lesson", "moe", "--lang", "en", "--answers")
    assert 'metacount check "..." mixtral-8x7b' in hidden
    assert "V*d" not in hidden
    assert 'metacount check "V*d + 2*N*d*h_d*(h + h_kv)' in shown
    assert '"..."' not in shown


def test_the_model_of_the_readers_choice(capsys: pytest.CaptureFixture[str], tiny: str) -> None:
    assert "61" in run(capsys, "lesson", "block", "--model", "deepseek-v3", "--lang", "en")
    assert run_json(capsys, "lesson", "block", "--model", tiny, "--lang", "en")["model"] == "tiny"
    wide = ("lesson", "ffn", "--model", "llama-7b", "--lang", "en", "--set", "d_ff=12345")
    text = run(capsys, *wide)
    assert "--set d_ff=12345" in text.splitlines()[1]
    assert "12,345" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("moee",), "lesson 'moee' is not known; did you mean moe"),
        (("xyz",), "choose one of block, embedding"),
        (("moe", "--model", "llama-7b"), "needs a model with experts"),
        (("moe", "--model", "longcat-flash"), "experts in the place of a feed-forward: longcat-"),
        (
            ("norm", "--model", "longcat-flash"),
            "needs a block with attention whose norms may stand",
        ),
        (("block", "--model", "gemma-3n-e2b-text"), "lesson block has no word for n_altup_inputs"),
        (("moe", "--model", "nobody-7b"), "not in the catalog"),
        (("moe", "--lang", "fr"), "--lang 'fr' is not known; choose one of en, zh"),
        (("moe", "--json", "--markdown"), "leave one of them out"),
        (("--model", "llama-7b"), "lesson needs TOPIC"),
        (
            ("moe", "--set", "moe_latent_rank=512"),
            "lesson moe has no word for moe_latent_rank of mixtral-8x7b",
        ),
        (("block", "--set", "d_fff=3"), "not a field of a model"),
    ],
)
def test_a_wrong_request_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert said in refused(capsys, "lesson", *arguments)


@daily(5)
@pytest.mark.parametrize("topic", ANALYTIC)
def test_a_lesson_that_executes_nothing_imports_no_torch(topic: str) -> None:
    program = (
        "import sys\nfrom metacount.cli import main\n"
        f"assert main(['lesson', {topic!r}, '--json']) == 0\n"
        "assert not {'torch', 'transformers', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)


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
