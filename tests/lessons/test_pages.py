"""Every lesson in both languages: computed, complete, as wide as the screen, its answers right."""

from __future__ import annotations

import re

import pytest
from helpers.release import ONLY, daily
from helpers.structures import first_of_each

import metacount
from metacount import catalog
from metacount.cli.layout import cells
from metacount.cli.lesson import Lesson
from metacount.errors import InputError, SpecError
from metacount.formulas import model
from metacount.languages import LANGUAGES
from metacount.spec import legend
from metacount.teaching import lessons
from metacount.teaching.lessons import NAMES, TOPICS, Here, Page, Source, page_of, source_of
from metacount.teaching.texts import computed

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


def test_an_exercise_says_what_to_type() -> None:
    page = page_of("attention", "llama-7b", settings=["n_layers=2"])
    hidden, shown = (page.to_dict(answers=answers)["blocks"] for answers in (False, True))
    commands = [block for block in hidden if block["kind"] == "exercise"]
    assert commands[0]["command"] == (
        'metacount check "..." llama-7b --set n_layers=2 --quantity kv_cache_bytes'
    )
    assert all("answer" not in block for block in commands)
    answer = next(block["answer"] for block in shown if block["kind"] == "exercise")
    assert answer == (
        'metacount check "2*B*N*S*c*h_d*h_kv" llama-7b --set n_layers=2 --quantity kv_cache_bytes'
    )
    # what the exercise changes takes the place of what the reader changed
    typed = page_of("embedding", "llama-7b", settings=["tie_embeddings=true", "n_layers=3"])
    command = next(block.answer for block in typed.blocks if block.kind == "exercise")
    assert command.endswith("llama-7b --set tie_embeddings=false --set n_layers=3")


@pytest.mark.parametrize("topic", TOPICS)
def test_models_that_are_named_as_examples_fit(topic: str) -> None:
    source = source_of(topic)
    for id in (source.head["model"], *source.examples.split(", ")):
        here = Here(metacount.find_model(id), "en", source)
        assert computed(source.head["fits"], here), id


def test_a_model_that_does_not_fit_is_one_clear_line() -> None:
    with pytest.raises(InputError, match=r"lesson moe needs a model with experts .*: llama-7b has"):
        page_of("moe", "llama-7b")
    with pytest.raises(InputError, match="choose for example qwen3-32b"):
        page_of("qwen3", "gpt2")


def test_the_numbers_are_those_of_the_model() -> None:
    spec = catalog.entry("llama-7b").spec()
    page = page_of("block", "llama-7b")
    assert page.values["block"] == 4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096
    assert page.values["block"] * 32 == model.params(spec) - 2 * 32000 * 4096 - 4096
    wider = page_of("block", "llama-7b", settings=["d_ff=11009"])
    assert wider.values["block"] - page.values["block"] == 3 * 4096
    assert wider.changes == {"d_ff": 11009}


def planted(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    source = source_of("block")
    changed = Source(head=source.head, definitions=source.definitions, text=text)
    monkeypatch.setattr(lessons, "source_of", lambda _: changed)


def test_a_placeholder_that_nothing_computes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, "# T\n\n{nobody} knows\n")
    with pytest.raises(SpecError, match="nothing computes: got 'nobody'"):
        page_of("block")


def test_rows_of_another_length_than_the_head_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, "# T\n\n| a | b |\n| {name} |\n")
    with pytest.raises(SpecError, match="rows do not have the cells of its head"):
        page_of("block")
