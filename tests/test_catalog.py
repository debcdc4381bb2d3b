"""Every published model: readable, sourced, and counted as others counted it."""

from __future__ import annotations

import builtins
import math
import sys
from typing import Any

import pytest

from metacount import catalog, units
from metacount.errors import SpecError
from metacount.formulas import model
from metacount.spec import FIELDS, ModelSpec


def words(text: str) -> list[str]:
    return text.split()


IDS = words("""
baichuan2-13b bamba-9b bert-base bloom-176b chinchilla-70b deepseek-67b deepseek-moe-16b deepseek-v2
deepseek-v3 deepseek-v3.2 falcon-180b falcon-h1-0.5b falcon-h1-7b falcon-mamba-7b galactica-120b
gemma-2b gemma-7b gemma2-2b gemma2-9b gemma3-1b gemma3-270m gemma3-27b-text gemma3-4b-text glm-130b
glm-4.5 gopher-280b gpt-oss-20b gpt2 gpt2-large gpt2-medium gpt2-xl gpt3-175b granite-4.0-h-micro
granite-4.0-h-small granite-4.0-h-tiny granite-4.0-micro gshard-600b internlm2-20b jamba-1.5-large
jamba-1.5-mini jurassic1-178b kimi-linear-48b-a3b lamda-137b lfm2-1.2b lfm2-350m lfm2-700m
lfm2-8b-a1b llama-13b llama-33b llama-65b llama-7b llama2-70b llama3-70b llama3-8b llama3.1-405b
llama4-maverick llama4-scout llama4-scout-text mamba-2.8b mamba-codestral-7b mamba2-1.3b mamba2-130m
mamba2-2.7b mamba2-370m mamba2-780m minimax-text-01 mistral-7b mixtral-8x7b mpt-30b mt-nlg-530b
nemotron-3-nano-30b-a3b nemotron-h-8b olmo-hybrid-7b olmo2-13b olmo2-1b olmo2-7b opt-175b palm-540b
pangu-alpha-207b phi3-small phi3.5-moe pythia-12b qwen1.5-72b qwen2-0.5b qwen2-72b qwen2-7b
qwen2.5-32b qwen2.5-3b qwen3-0.6b qwen3-1.7b qwen3-14b qwen3-235b-a22b qwen3-30b-a3b qwen3-32b
qwen3-4b qwen3-8b qwen3-next-80b-a3b qwen3.5-35b-a3b-text recurrentgemma-2b recurrentgemma-9b
smollm2-1.7b smollm2-135m smollm3-3b switch-base-16 switch-base-256 switch-base-32 switch-base-64
switch-base-8 switch-c-2048 switch-large-128 switch-xxl t5-11b t5-base t5-large t5-small
textbook-block transformer-base transformer-big yi-34b yulan-12b zamba2-1.2b zamba2-2.7b zamba2-7b
""")

# Measured by others (benchmarks/measured_counts.py prints them anew): numel() of the class in
# transformers 5.23 on the meta device, or plain algebra where transformers has no such class.
# Mixtures of experts: total, active, active without the token table.
MEASURED: dict[str, int | tuple[int, int, int]] = {
    "baichuan2-13b": 13_896_668_160, "bert-base": 109_482_240, "bloom-176b": 176_247_271_424,
    "chinchilla-70b": 70_057_992_192, "deepseek-67b": 67_425_001_472,
    "deepseek-moe-16b": (16_375_728_128, 2_828_650_496, 2_618_935_296),
    "deepseek-v2": (235_741_434_880, 21_375_800_320, 20_851_512_320),
    "deepseek-v3": (671_026_404_352, 37_552_282_624, 36_625_603_584),
    "deepseek-v3.2": (671_877_929_216, 38_403_807_488, 37_477_128_448),
    "lfm2-1.2b": 1_170_340_608, "lfm2-350m": 354_483_968, "lfm2-700m": 742_489_344,
    "lfm2-8b-a1b": (8_339_929_856, 1_557_740_288, 1_557_740_288),
    "recurrentgemma-2b": 2_682_862_080, "recurrentgemma-9b": 8_579_977_216,
    "falcon-180b": 178_557_088_768, "galactica-120b": 121_330_903_040, "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896, "gemma2-2b": 2_614_341_888, "gemma2-9b": 9_241_705_984,
    "gemma3-1b": 999_885_952, "gemma3-270m": 268_098_176, "gemma3-27b-text": 27_009_346_304,
    "gemma3-4b-text": 3_880_263_168, "glm-130b": 128_697_794_560,
    "glm-4.5": (352_797_814_784, 33_632_251_904, 32_856_305_664), "gopher-280b": 279_702_421_504,
    "gpt-oss-20b": (20_914_757_184, 4_187_440_704, 3_608_307_264), "gpt2": 124_439_808,
    "gpt2-large": 774_030_080, "gpt2-medium": 354_823_168, "gpt3-175b": 174_604_259_328,
    "granite-4.0-micro": 3_402_836_480, "gshard-600b": 619_268_014_080,
    "internlm2-20b": 19_861_149_696, "jurassic1-178b": 177_866_855_424,
    "lamda-137b": 137_702_154_240, "llama-13b": 13_015_864_320, "llama-65b": 65_285_660_672,
    "llama-7b": 6_738_415_616, "llama2-70b": 68_976_648_192, "llama3-70b": 70_553_706_496,
    "llama3-8b": 8_030_261_248, "llama3.1-405b": 405_853_388_800,
    "llama4-scout-text": (107_769_861_120, 17_172_894_720, 16_138_408_960),
    "mistral-7b": 7_241_732_096, "mixtral-8x7b": (46_702_792_704, 12_879_925_248, 12_748_853_248),
    "mpt-30b": 29_957_200_896, "mt-nlg-530b": 529_600_819_200, "olmo2-13b": 13_716_198_400,
    "olmo2-1b": 1_484_916_736, "olmo2-7b": 7_298_617_344, "opt-175b": 174_604_468_224,
    "palm-540b": 540_356_474_880, "pangu-alpha-207b": 206_861_008_896, "phi3-small": 7_392_272_384,
    "phi3.5-moe": (41_873_153_344, 6_640_999_744, 6_509_665_600), "pythia-12b": 11_846_072_320,
    "qwen1.5-72b": 72_287_920_128, "qwen2-0.5b": 494_032_768, "qwen2-72b": 72_706_203_648,
    "qwen2-7b": 7_615_616_512, "qwen2.5-32b": 32_763_876_352, "qwen2.5-3b": 3_085_938_688,
    "qwen3-0.6b": 596_049_920, "qwen3-1.7b": 1_720_574_976,
    "qwen3-235b-a22b": (235_093_634_560, 22_190_763_520, 21_568_433_664),
    "qwen3-30b-a3b": (30_532_122_624, 3_353_032_704, 3_041_867_776),
    "qwen3-32b": 32_762_123_264, "qwen3-4b": 4_022_468_096, "qwen3-8b": 8_190_735_360,
    "qwen3-next-80b-a3b": (79_674_391_296, 3_874_929_408, 3_563_764_480),
    "qwen3.5-35b-a3b-text": (34_660_610_688, 3_454_988_928, 2_946_429_568),
    "minimax-text-01": (456_089_655_296, 48_403_306_496, 47_174_113_280),
    "kimi-linear-48b-a3b": (49_122_675_072, 3_484_453_248, 3_106_965_888),
    "olmo-hybrid-7b": 7_430_870_688,
    "smollm2-1.7b": 1_711_376_384, "smollm2-135m": 134_515_008, "smollm3-3b": 3_075_098_624,
    "switch-base-16": 1_072_397_568, "switch-base-256": 14_664_154_368,
    "switch-base-32": 1_978_514_688, "switch-base-64": 3_790_748_928, "switch-base-8": 619_339_008,
    "switch-c-2048": 1_571_308_972_448, "switch-large-128": 26_309_291_008,
    "switch-xxl": 394_543_476_736, "t5-11b": 11_307_321_344, "t5-base": 222_903_552,
    "t5-large": 737_668_096, "t5-small": 60_506_624, "transformer-base": 63_045_632,
    "transformer-big": 214_171_648, "yi-34b": 34_388_917_248, "yulan-12b": 11_904_353_024,
    "mamba2-130m": 128_989_632,
    "mamba2-370m": 368_346_624,
    "mamba2-780m": 780_161_280,
    "mamba2-1.3b": 1_343_757_312,
    "mamba2-2.7b": 2_702_599_680,
    "mamba-2.8b": 2_768_345_600,
    "mamba-codestral-7b": 7_285_403_648,
    "falcon-mamba-7b": 7_272_665_088,
    "jamba-1.5-mini": (51_570_323_328, 12_110_311_296, 11_841_875_840),
    "jamba-1.5-large": (398_555_145_696, 94_149_338_592, 93_612_467_680),
    "bamba-9b": 9_780_235_392,
    "granite-4.0-h-micro": 3_191_396_096,
    "granite-4.0-h-tiny": (6_939_037_248, 1_465_470_528, 1_465_470_528),
    "granite-4.0-h-small": (32_207_337_984, 8_803_121_664, 8_803_121_664),
    "falcon-h1-0.5b": 521_411_104,
    "falcon-h1-7b": 7_585_654_880,
    "nemotron-h-8b": 8_100_852_736,
    "nemotron-3-nano-30b-a3b": (31_577_937_344, 3_580_073_408, 3_227_751_872),
    "zamba2-1.2b": 1_215_064_704,
    "zamba2-2.7b": 2_662_214_560,
    "zamba2-7b": 7_356_749_648,
}  # fmt: skip

# They left something out that the model has. What we count beyond them, with its arithmetic.
LEFT_OUT = {
    # 18 x 2 + 18 x 3 norms of the blocks and 2 final ones, scale and shift of width 1024 each
    "gshard-600b": (18 * 2 + 18 * 3 + 2) * 2 * 1024,
    # T5's table of relative positions: 32 buckets x 128 heads
    "lamda-137b": 32 * 128,
}

ROUNDS = words("""
chinchilla-70b deepseek-67b deepseek-v3 gemma3-4b-text gopher-280b jurassic1-178b lfm2-8b-a1b
llama-13b llama-33b mt-nlg-530b olmo-hybrid-7b opt-175b phi3-small phi3.5-moe qwen1.5-72b
qwen3-30b-a3b qwen3.5-35b-a3b-text recurrentgemma-2b recurrentgemma-9b
switch-base-256 switch-c-2048 switch-large-128 switch-xxl yulan-12b
bamba-9b falcon-h1-0.5b falcon-mamba-7b granite-4.0-h-small jamba-1.5-mini mamba-2.8b mamba2-1.3b
mamba2-2.7b mamba2-780m nemotron-h-8b zamba2-1.2b zamba2-2.7b zamba2-7b
""")

UNPUBLISHED = ["switch-base-16", "switch-base-32", "switch-base-64", "switch-base-8"]

# Labels that our count does not meet at their last digit: ours minus the label, and a word of why.
DIFFERS = {
    "baichuan2-13b": (896_668_160, "vocabulary"),
    "deepseek-v3.2": (877_929_216, "indexers"),
    "falcon-180b": (-1_442_911_232, "tied head a second time"),
    "galactica-120b": (1_330_903_040, "nominal"),
    "gemma3-27b-text": (-10_653_696, "embedding rows"),
    "glm-130b": (-1_302_205_440, "two digits"),
    "glm-4.5": (-2_202_185_216, "multi-token-prediction"),
    "gpt3-175b": (4_259_328, "four digits"),
    "gshard-600b": (19_268_202_496, "round figure"),
    "kimi-linear-48b-a3b": (1_122_675_072, "below the count"),
    "lamda-137b": (702_158_336, "leaves out the embedding"),
    "llama-65b": (85_660_672, "cut off"),
    "llama2-70b": (-1_023_351_808, "name"),
    "llama4-scout-text": (-1_230_138_880, "vision tower"),
    "jamba-1.5-large": (555_145_696, "cut off"),
    "mamba2-130m": (-1_010_368, "name of a size"),
    "mamba2-370m": (-1_653_376, "name of a size"),
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
}

ROUTERS = {
    "mixtral-8x7b": ("topk_softmax", 1.0),
    "qwen3-235b-a22b": ("softmax_renorm", 1.0),
    "qwen3-30b-a3b": ("softmax_renorm", 1.0),
    "deepseek-moe-16b": ("softmax", 1.0),
    "deepseek-v2": ("softmax", 16.0),
    "deepseek-v3.2": ("sigmoid_renorm", 2.5),
    "lfm2-8b-a1b": ("sigmoid_renorm", 1.0),
    "deepseek-v3": ("sigmoid_renorm", 2.5),
    "glm-4.5": ("sigmoid_renorm", 2.5),
    "gpt-oss-20b": ("topk_softmax", 1.0),
    "switch-base-8": ("softmax", 1.0),
    "jamba-1.5-mini": ("softmax", 1.0),
    "granite-4.0-h-small": ("topk_softmax", 1.0),
    "nemotron-3-nano-30b-a3b": ("sigmoid_renorm", 2.5),
    "gshard-600b": ("softmax_renorm", 1.0),
    "llama4-scout-text": ("sigmoid", 1.0),
}

WINDOWS = {
    "mistral-7b": (4096, "sliding", 32),
    "gemma2-2b": (4096, "sliding", 13),
    "gemma2-9b": (4096, "sliding", 21),
    "gemma3-270m": (512, "sliding", 15),
    "gemma3-1b": (512, "sliding", 22),
    "gemma3-4b-text": (1024, "sliding", 29),
    "gemma3-27b-text": (1024, "sliding", 52),
    "gpt-oss-20b": (128, "sliding", 12),
    "llama4-scout-text": (8192, "chunked", 36),
    "recurrentgemma-2b": (2048, "sliding", 8),
    "recurrentgemma-9b": (2048, "sliding", 12),
}

BUILT = [id for id in IDS if catalog.entry(id).sizes is not None]


def test_the_catalog_holds_exactly_these_models() -> None:
    assert list(catalog.ids()) == IDS
    assert [entry.id for entry in catalog.entries()] == IDS
    assert len(IDS) == 123 and len(BUILT) == 121


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
        with pytest.raises(catalog.NotExpressible, match="is in the catalog, but has no spec"):
            entry.spec()
        assert entry.config is not None, "transformers builds what no spec expresses"
        return
    assert entry.not_expressible is None and entry.config is None
    defaults = ModelSpec.from_dict(dict(entry.sizes)).to_dict()
    assert {k: v for k, v in defaults.items() if k in dict(entry.sizes)} == dict(entry.sizes)


@pytest.mark.parametrize("id", BUILT)
def test_a_file_states_only_what_differs_from_a_default(id: str) -> None:
    required = {
        "kind",
        "d_model",
        "n_layers",
        "vocab_size",
        "n_heads",
        "activation",
        "gated",
        "norm",
        "position",
    }
    sizes = dict(catalog.entry(id).sizes or ())
    if sizes.get("attention") == "none":
        required -= {"n_heads"}
    if sizes.get("ffn_pattern") == "N":
        required -= {"activation", "gated"}
    assert required <= set(sizes)
    for name in set(sizes) - required:
        assert sizes[name] != FIELDS[name].absent, name


@pytest.mark.parametrize("id", BUILT)
def test_what_is_inferred_names_its_fields(id: str) -> None:
    for line in catalog.entry(id).inferred:
        names, _, words = line.partition(": ")
        assert words, line
        assert set(names.split(", ")) <= set(FIELDS), line


def test_low_confidence_is_never_silent() -> None:
    silent = [
        e.id for e in catalog.entries() if e.confidence in ("low", "medium") and not e.inferred
    ]
    assert silent == []


@pytest.mark.parametrize("id", sorted(MEASURED))
def test_our_count_is_what_others_measured(id: str) -> None:
    spec, theirs = catalog.entry(id).spec(), MEASURED[id]
    total = theirs if isinstance(theirs, int) else theirs[0]
    assert model.params(spec) == total + LEFT_OUT.get(id, 0)
    if not isinstance(theirs, int):
        assert (model.active_params(spec), model.active_params_no_embed(spec)) == theirs[1:]


def test_nobody_measured_only_these() -> None:
    assert set(BUILT) - set(MEASURED) == {"llama-33b", "gpt2-xl", "qwen3-14b", "textbook-block"}
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
    elif id in UNPUBLISHED:
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


def test_structure_beyond_the_count() -> None:
    specs = {id: catalog.entry(id).spec() for id in BUILT}
    assert {i: (specs[i].router, specs[i].routed_scale) for i in ROUTERS} == ROUTERS
    windowed = {
        i: (s.window, s.window_kind, sum(map(s.is_windowed_layer, range(s.n_layers))))
        for i, s in specs.items()
        if s.window
    }
    assert windowed == WINDOWS
    for id, spec in specs.items():
        family = catalog.entry(id).family
        scaled = family.startswith("Gemma") or family == "Transformer"
        own = {
            "phi3-small": 10.0,
            "granite-4.0-micro": 12.0,
            "recurrentgemma-2b": 50.5,
            "recurrentgemma-9b": 64.0,
        }.get(id, 1.0)
        assert spec.embedding_scale == (math.sqrt(spec.d_model) if scaled else own), id
        t5 = family in ("T5", "Switch Transformer")
        assert (spec.attention_scale == 1.0) == t5, id
        zero_centred = family.startswith("Gemma") or family in (
            "Qwen3-Next",
            "Qwen3.5",
            "RecurrentGemma",
        )
        assert spec.norm_unit_offset == zero_centred, id
    assert specs["gemma3-27b-text"].attention_scale == pytest.approx(1 / math.sqrt(168))
    assert specs["pythia-12b"].rotary_dim == 32 and specs["smollm3-3b"].nope_every == 4


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    with pytest.raises(catalog.UnknownModel, match=r"got 'llama-7'; did you mean .*llama-7b.*\?$"):
        catalog.entry("llama-7")
    with pytest.raises(SpecError, match=r"see `metacount models`$"):
        catalog.entry("")


@pytest.mark.parametrize(
    "name", ["../spec", "llama-7b.json", "./llama-7b", "LLAMA-7B", "__init__", "\0"]
)
def test_only_a_listed_name_opens_a_file(name: str) -> None:
    with pytest.raises(catalog.UnknownModel, match="is not in the catalog"):
        catalog.entry(name)


def test_asking_for_one_model_reads_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = builtins.open

    def spy(path: str, *args: Any, **kwargs: Any) -> Any:
        opened.append(path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", spy)
    assert catalog.entry("gpt2").name == "GPT-2 small"
    assert len(opened) == 1 and opened[0].endswith("gpt2.json")


def test_without_the_scanner_json_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    before = catalog.entries()
    monkeypatch.setitem(sys.modules, "_json", None)
    assert catalog.entries() == before


def a_model(
    label: str | None,
    params: int | None = None,
    meaning: str | None = None,
    explanation: str | None = None,
) -> catalog.CatalogEntry:
    published = catalog.Published(
        label=label,
        label_meaning=meaning,
        params=params,
        params_source="a table" if params else None,
        active_label=None,
        active_label_meaning=None,
        active_params=None,
    )
    return catalog.CatalogEntry(
        id="x",
        name="X",
        family="X",
        sizes=None,
        not_expressible="X.",
        config=None,
        published=published,
        explanation=explanation,
        stored_checkpoint=None,
        source=("a paper",),
        confidence="high",
        evidence_grade="A",
        inferred=(),
        notes=None,
    )


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


def test_a_stored_explanation_is_passed_on() -> None:
    entry = a_model("7B", explanation="counts the cat")
    assert catalog.compare_published(entry, 9 * 10**9) == catalog.Comparison(
        status="differs", difference=2 * 10**9, percent="+29 %", explanation="counts the cat"
    )
