"""Every published model: readable, sourced, and counted as others counted it."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from helpers.catalog_counts import MEASURED
from helpers.release import daily

from metacount import catalog, units
from metacount.formulas import model
from metacount.huggingface.config.keys import words
from metacount.spec import FIELDS, ModelSpec

# Models that nobody else measured, and those that no spec expresses.
ALONE = {"llama-33b", "gpt2-xl", "qwen3-14b", "textbook-block"}
UNBUILT = {"llama4-maverick", "llama4-scout"}
IDS = sorted({*MEASURED, *ALONE, *UNBUILT})

# They left something out that the model has, or store what nobody reads. What we count beyond them,
# with its arithmetic.
LEFT_OUT = {
    # 18 x 2 + 18 x 3 norms of the blocks and 2 final ones, scale and shift of width 1024 each
    "gshard-600b": (18 * 2 + 18 * 3 + 2) * 2 * 1024,
    # T5's table of relative positions: 32 buckets x 128 heads
    "lamda-137b": 32 * 128,
    # rows for 256 zero experts in 28 tensors of gate and up, which no token reads
    "longcat-flash": -28 * 256 * 2 * 2048 * 6144,
}

ROUNDS = words("""
chinchilla-70b deepseek-67b deepseek-v3 gemma3-4b-text gopher-280b jurassic1-178b lfm2-8b-a1b
llama-13b llama-33b mt-nlg-530b olmo-hybrid-7b opt-175b phi3-small phi3.5-moe qwen1.5-72b
qwen3-30b-a3b qwen3.5-35b-a3b-text recurrentgemma-2b recurrentgemma-9b
switch-base-256 switch-c-2048 switch-large-128 switch-xxl yulan-12b
bamba-9b falcon-h1-0.5b falcon-mamba-7b granite-4.0-h-small jamba-1.5-mini mamba-2.8b mamba2-1.3b
mamba2-2.7b mamba2-780m nemotron-h-8b zamba2-1.2b zamba2-2.7b zamba2-7b
""")


# Labels that our count does not meet at their last digit: ours minus the label, and a word of why.
DIFFERS = {
    "baichuan2-13b": (896_668_160, "vocabulary"),
    "deepseek-v3.2": (877_929_216, "indexers"),
    "falcon-180b": (-1_442_911_232, "tied head a second time"),
    "galactica-120b": (1_330_903_040, "nominal"),
    "gemma3-27b-text": (-10_653_696, "embedding rows"),
    "gemma-3n-e2b-text": (-564_817_312, "The label counts the towers"),
    "gemma-3n-e4b-text": (-1_164_764_432, "The label counts the towers"),
    "glm-130b": (-1_302_205_440, "two digits"),
    "glm-4.5": (-2_202_185_216, "multi-token-prediction"),
    "gpt3-175b": (4_259_328, "four digits"),
    "gshard-600b": (19_268_202_496, "round figure"),
    "kimi-linear-48b-a3b": (1_122_675_072, "below the count"),
    "lamda-137b": (702_158_336, "leaves out the embedding"),
    "llama-65b": (85_660_672, "cut off"),
    "llama2-70b": (-1_023_351_808, "name"),
    "llama4-scout-text": (-1_230_138_880, "vision tower"),
    "longcat-flash": (664_958_976, "two digits"),
    "jamba-1.5-large": (555_145_696, "cut off"),
    "mamba2-130m": (-1_010_368, "name of a size"),
    "mamba2-370m": (-1_653_376, "name of a size"),
    "minimax-m3-text": (-1_825_434_368, "vision tower"),
    "mpt-30b": (7_200_896, "cut off"),
    "palm-540b": (6_474_880, "norm scales"),
    "pangu-alpha-207b": (-138_991_104, "query layer"),
    "transformer-base": (-1_954_368, "none of 37,000"),
    "transformer-big": (1_171_648, "not the stated 37,000"),
}

# Which of our two active counts a published active label means, at its last digit.
ACTIVE = {
    "qwen3-235b-a22b": {"all", "no_embed"},
    "qwen3-30b-a3b": set(),
    "mixtral-8x7b": {"all"},
    "deepseek-moe-16b": {"all"},
    "deepseek-v2": {"all", "no_embed"},
    "deepseek-v3": {"no_embed"},
    "gpt-oss-20b": {"no_embed"},
    "glm-4.5": set(),
    "llama4-scout-text": {"all"},
    "phi3.5-moe": {"all"},
    "jamba-1.5-mini": {"all", "no_embed"},
    "jamba-1.5-large": {"all", "no_embed"},
    "granite-4.0-h-small": {"all", "no_embed"},
    "nemotron-3-nano-30b-a3b": {"no_embed"},
    "deepseek-v3.2": {"no_embed"},
    "lfm2-8b-a1b": set(),
    "longcat-flash": set(),  # cut off
    "minimax-m3-text": set(),  # likewise, without embedding and head
}


BUILT = [id for id in IDS if catalog.entry(id).sizes is not None]


def test_the_catalog_holds_exactly_these_models() -> None:
    assert list(catalog.ids()) == IDS
    assert [entry.id for entry in catalog.entries()] == IDS
    assert len(IDS) == 128 and {*IDS} - {*BUILT} == UNBUILT


@pytest.mark.parametrize("id", IDS)
def test_an_entry_is_complete(id: str) -> None:
    entry = catalog.entry(id)
    assert entry.name and entry.family and entry.source and all(entry.source)
    assert entry.confidence in ("high", "medium-high", "medium", "low")
    assert entry.evidence_grade in ("A", "B", "D")
    assert (entry.published.params is None) == (entry.published.params_source is None)
    for label in (entry.published.label, entry.published.active_label):
        assert label is None or units.parse_count(label)[0] > 0
    if entry.sizes is None:
        assert entry.not_expressible and entry.not_expressible.endswith(".")
        assert entry.published.label, "a model that cannot be built has at least its label"
        with pytest.raises(catalog.NotExpressible):
            entry.spec()
        assert entry.config is not None, "transformers builds what no spec expresses"
        return
    assert entry.not_expressible is None and entry.config is None
    assert entry.inferred or entry.confidence not in ("low", "medium")
    for line in entry.inferred:
        names, _, said = line.partition(": ")
        assert said and set(names.split(", ")) <= set(FIELDS), line
    defaults = ModelSpec.from_dict(dict(entry.sizes)).to_dict()
    assert {k: v for k, v in defaults.items() if k in dict(entry.sizes)} == dict(entry.sizes)


@daily(3)
@pytest.mark.parametrize("id", sorted(MEASURED))
def test_our_count_is_what_others_measured(id: str) -> None:
    spec, theirs = catalog.entry(id).spec(), MEASURED[id]
    total = theirs if isinstance(theirs, int) else theirs[0]
    assert model.params(spec) == total + LEFT_OUT.get(id, 0)
    if not isinstance(theirs, int):
        assert (model.active_params(spec), model.active_params_no_embed(spec)) == theirs[1:]


def test_models_that_nobody_measured_by_hand() -> None:
    # 2·32000·6656 + 60·(4·6656² + 3·6656·17920 + 2·6656) + 6656
    assert model.params(catalog.entry("llama-33b").spec()) == 32_528_943_616
    # 4·512² + 2·512·2048 + 2·2·512
    assert model.params(catalog.entry("textbook-block").spec()) == 3_147_776


@pytest.mark.parametrize("id", BUILT)
def test_how_our_count_compares_with_the_published_one(id: str) -> None:
    entry = catalog.entry(id)
    params = model.params(entry.spec())
    found = catalog.compare_published(entry, params)
    if id in DIFFERS:
        difference, why = DIFFERS[id]
        assert (found.status, found.difference) == ("differs", difference)
        assert why in found.explanation and found.percent[0] in "+-"
    elif id in ROUNDS:
        assert (found.status, found.difference, found.percent) == ("rounds", 0, "0 %")
    elif entry.published.label is None and entry.published.params is None:
        assert id.startswith("switch-base-")
        assert (found.status, found.difference) == ("unpublished", None)
    else:
        assert entry.published.params == params
        assert (found.status, found.difference, found.percent) == ("exact", 0, "0 %")


@pytest.mark.parametrize("id", [id for id in BUILT if catalog.entry(id).stored_checkpoint])
def test_a_stored_checkpoint_is_the_parameters_and_what_its_note_says(id: str) -> None:
    stored = catalog.entry(id).stored_checkpoint
    assert stored is not None
    assert stored.total - stored.extra == model.params(catalog.entry(id).spec())
    assert stored.extra == 0 or stored.note


@pytest.mark.parametrize("id", sorted(ACTIVE))
def test_what_a_published_active_label_counts(id: str) -> None:
    entry = catalog.entry(id)
    assert entry.published.active_label is not None
    value, half = units.parse_count(entry.published.active_label)
    ours = {
        "all": model.active_params(entry.spec()),
        "no_embed": model.active_params_no_embed(entry.spec()),
    }
    assert {name for name, count in ours.items() if abs(count - value) <= half} == ACTIVE[id]


def test_asking_for_one_model_reads_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = builtins.open

    def spy(path: str, *args: Any, **kwargs: Any) -> Any:
        opened.append(path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", spy)
    assert catalog.entry("gpt2").name == "GPT-2 small"
    assert len(opened) == 1 and opened[0].endswith("gpt2.json")
    for name in ("../spec", "llama-7b.json", "./llama-7b", "LLAMA-7B", "__init__", "\0"):
        with pytest.raises(catalog.UnknownModel):
            catalog.entry(name)
    assert len(opened) == 1


def a_model(
    label: str | None, params: int | None = None, meaning: str | None = None
) -> catalog.CatalogEntry:
    entry = catalog.entry("gpt2")
    published = {**vars(entry.published), "label": label, "label_meaning": meaning}
    other = catalog.Published(**{**published, "params": params})
    return catalog.CatalogEntry(**{**vars(entry), "published": other, "explanation": None})


@pytest.mark.parametrize(
    ("entry", "ours", "status", "difference"),
    [
        (a_model("6.7B"), 6_650_000_000, "rounds", 0),  # the label's last digit is 0.1B
        (a_model("6.7B"), 6_750_000_000, "rounds", 0),
        (a_model("6.7B"), 6_649_999_999, "differs", -50_000_001),
        (a_model("70B"), 69_499_999_999, "differs", -500_000_001),
        (a_model("7B", 7_000_000_001), 7_000_000_001, "exact", 0),
        (a_model("7B", 7_000_000_001), 7_000_000_000, "differs", -1),  # the integer decides alone
        (a_model("7B", meaning="without embedding"), 7_000_000_000, "differs", 0),
        (a_model("1,234"), 1_235, "differs", 1),
        (a_model(None), 5, "unpublished", None),
    ],
)
def test_a_comparison_by_hand(
    entry: catalog.CatalogEntry, ours: int, status: str, difference: int | None
) -> None:
    found = catalog.compare_published(entry, ours)
    assert (found.status, found.difference) == (status, difference)
    assert found.explanation == (catalog.UNEXPLAINED if status == "differs" else "")
