"""KV cache as an engine reserves it: against logs, by hand, and on the command line."""

from __future__ import annotations

import pytest
from helpers.command_line import refused, run, run_json

from metacount import catalog
from metacount.errors import SpecError
from metacount.huggingface.config.to_spec import spec_from_config
from metacount.spec import Workload
from metacount.textbook.engine import Reserved, reserved_cache


def reserved(name: str, *, batch: int = 1, seq: int = 2048, dtype: str = "bf16") -> Reserved:
    run = Workload(batch_size=batch, seq_len=seq)
    return reserved_cache(catalog.entry(name).spec(), run, "vllm", dtype)


def test_reports_of_others() -> None:
    # hf-mem, pull request 70 (2026-07-24): 32 sequences of 8,192 tokens, 12.00 GiB
    assert reserved("gpt-oss-20b", batch=32, seq=8192).kv_cache_bytes == 12 * 2**30
    # hf-mem, issue 60 (2026-05-06): vLLM's log of gpt-oss-120b: 5.38 GiB are 78,384 tokens
    spec = spec_from_config({"model_type": "gpt_oss"}).spec  # its sizes by default
    found = reserved_cache(spec, Workload(seq_len=78_384), "vllm", "bf16")
    assert found.kv_cache_bytes_per_token == 73_728
    assert f"{found.kv_cache_bytes / 2**30:.2f}" == "5.38"


def test_layers_in_groups_by_hand() -> None:
    # Gemma 3 1B: 22 layers with a window, 4 without; 6 groups of 4 and 1: 28 layers of 2 * 256
    # values a token, in blocks of 16 tokens: 100 tokens take 7
    found = reserved("gemma3-1b", seq=100)
    assert found.kv_cache_bytes_per_token == 28 * 2 * 256 * 2
    assert found.kv_cache_bytes == 7 * 16 * 28 * 2 * 256 * 2
    assert "7 groups of 4 layers, 2 of them filled up" in found.rule
    # 3 with a window, 4 without: the larger number, for 4 < 1.5 * 3
    spec = catalog.entry("gemma3-1b").spec().substituted(n_layers=7, window_pattern="LLLGGGG")
    near = reserved_cache(spec, Workload(seq_len=16), "vllm", "fp8")
    assert near.kv_cache_bytes == 16 * 8 * 2 * 256
    assert "2 groups of 4 layers, 1 of them filled up" in near.rule
    # latents: 61 layers of 512 + 64 values, blocks of 64 tokens
    assert reserved("deepseek-v3", seq=65).kv_cache_bytes == 128 * 61 * 576 * 2
    assert reserved("llama-7b", batch=3, seq=17).kv_cache_bytes == 3 * 32 * 32 * 2 * 4096 * 2


def test_what_has_no_rule_is_refused() -> None:
    for name, why in (("qwen3-next-80b-a3b", "recurrent states"), ("bert-base", "decoders alone")):
        with pytest.raises(SpecError, match=why):
            reserved(name, seq=512)


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--engine", "vllm", "--seq", "8192", "--batch", "32"]
    text = " ".join(run(capsys, "count", "gpt-oss-20b", *sizes).split())
    assert "kv_cache_bytes 6,542,327,808 6.09 GiB" in text
    assert "reserved KV cache bytes 12,884,901,888 12.00 GiB" in text
    assert "2 groups of 12 layers, windows at full pages" in text
    data = run_json(capsys, "count", "gpt-oss-20b", *sizes, "--kv-dtype", "fp8")
    assert data["kv_cache_bytes"] == 6_542_327_808 // 2
    assert data["engine"]["kv_cache_bytes"] == 6 * 2**30
    assert data["workload"]["kv_dtype"] == "fp8"
    said = refused(capsys, "count", "--engine", "vllm", "--folder", ".")
    assert "--engine does not go with --folder" in said


def test_dtypes_of_caches_and_states(capsys: pytest.CaptureFixture[str]) -> None:
    name = "qwen3-next-80b-a3b"
    plain = run_json(capsys, "count", name)
    found = run_json(capsys, "count", name, "--state-dtype", "fp32", "--kv-dtype", "fp8")
    # of 36 layers the last 4 inputs of 8,192 channels; the states themselves are in fp32 anyway
    assert found["state_bytes"] - plain["state_bytes"] == 36 * 4 * 8192 * 2
    for name in ("kv_cache_bytes", "kv_cache_bytes_per_token"):
        assert 2 * found[name] == plain[name]
    same = ("params", "param_bytes", "matmul_flops")
    assert {name: found[name] for name in same} == {name: plain[name] for name in same}
