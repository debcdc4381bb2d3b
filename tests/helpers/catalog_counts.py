"""The catalog's models, and the counts that others measured of them."""

from __future__ import annotations


def words(text: str) -> list[str]:
    return text.split()


IDS = words("""
baichuan2-13b bamba-9b bert-base bloom-176b chinchilla-70b deepseek-67b deepseek-moe-16b deepseek-v2
deepseek-v3 deepseek-v3.2 falcon-180b falcon-h1-0.5b falcon-h1-7b falcon-mamba-7b galactica-120b
gemma-2b gemma-3n-e2b-text gemma-3n-e4b-text gemma-7b gemma2-2b gemma2-9b gemma3-1b gemma3-270m
gemma3-27b-text gemma3-4b-text glm-130b
glm-4.5 gopher-280b gpt-oss-20b gpt2 gpt2-large gpt2-medium gpt2-xl gpt3-175b granite-4.0-h-micro
granite-4.0-h-small granite-4.0-h-tiny granite-4.0-micro gshard-600b internlm2-20b jamba-1.5-large
jamba-1.5-mini jurassic1-178b kimi-linear-48b-a3b lamda-137b lfm2-1.2b lfm2-350m lfm2-700m
lfm2-8b-a1b llama-13b llama-33b llama-65b llama-7b llama2-70b llama3-70b llama3-8b llama3.1-405b
llama4-maverick llama4-scout llama4-scout-text longcat-flash mamba-2.8b mamba-codestral-7b
mamba2-1.3b mamba2-130m
mamba2-2.7b mamba2-370m mamba2-780m minimax-m3-text minimax-text-01 mistral-7b mixtral-8x7b
mpt-30b mt-nlg-530b
nemotron-3-nano-30b-a3b nemotron-h-8b olmo-hybrid-7b olmo2-13b olmo2-1b olmo2-7b opt-175b palm-540b
pangu-alpha-207b phi3-small phi3.5-moe pythia-12b qwen1.5-72b qwen2-0.5b qwen2-72b qwen2-7b
qwen2.5-32b qwen2.5-3b qwen3-0.6b qwen3-1.7b qwen3-14b qwen3-235b-a22b qwen3-30b-a3b qwen3-32b
qwen3-4b qwen3-8b qwen3-next-80b-a3b qwen3.5-35b-a3b-text recurrentgemma-2b recurrentgemma-9b
smollm2-1.7b smollm2-135m smollm3-3b switch-base-16 switch-base-256 switch-base-32 switch-base-64
switch-base-8 switch-c-2048 switch-large-128 switch-xxl t5-11b t5-base t5-large t5-small
textbook-block transformer-base transformer-big xlstm-7b yi-34b yulan-12b zamba2-1.2b
zamba2-2.7b zamba2-7b
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
    # without the token table's twin that each layer looks up; the token table is tied
    "gemma-3n-e2b-text": (4_435_182_688, 4_435_182_688, 2_421_916_768),
    "gemma-3n-e4b-text": (6_835_235_568, 6_835_235_568, 4_486_425_328),
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
    "longcat-flash": (741_053_585_408, 32_182_654_976, 31_377_348_608),
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
    "minimax-m3-text": (426_174_565_632, 25_962_466_560, 24_733_273_344),
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
    "xlstm-7b": 6_865_424_896,
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
