"""docker/ agrees with the project: pins, version, user, copied files, and the README's commands."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from helpers import ROOT

import metacount
from metacount import cli

DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
README = (DOCKER / "README.md").read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, comments left out and lines joined: ("COPY", "a b")."""
    lines = (line for line in DOCKERFILE.splitlines() if not line.startswith("#"))
    text = "\n".join(lines).replace("\\\n", " ")
    pairs = (line.partition(" ") for line in text.splitlines() if line)
    return [(word, " ".join(rest.split())) for word, _, rest in pairs]


def pins(text: str) -> dict[str, str]:
    """name==version pairs, the names as package indexes compare them."""
    found = re.findall(r"^([\w.-]+)==([\w.]+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def command_lines() -> list[list[str]]:
    """The words of each command of the README's `sh` blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def inside(words: list[str]) -> list[str]:
    """What `docker run ... metacount WORDS` or its CUDA twin hands to metacount."""
    image = next(i for i, word in enumerate(words) if word in ("metacount", "metacount:cuda"))
    return words[image + 1 :]


def test_every_package_is_installed_under_constraints() -> None:
    installs = [
        part
        for word, rest in instructions()
        if word == "RUN"
        for part in rest.split("&&")
        if " pip " in part and " install " in part
    ]
    assert len(installs) == 6
    for part in installs:
        # the wheel just built from these sources is the only one without a published version
        assert "-c constraints.txt" in part or part.split()[-1] == "wheel/*.whl", part


def test_no_pin_of_cuda_is_also_one_of_the_constraints() -> None:
    ours = pins((ROOT / "constraints.txt").read_text("utf-8"))
    cuda = pins((DOCKER / "constraints-cuda.txt").read_text("utf-8"))
    assert ours["torch"] == "2.13.0"  # whose dependencies constraints-cuda.txt lists
    assert cuda["triton"] == "3.7.1"
    assert not ours.keys() & cuda.keys()


def test_the_image_is_pinned_labelled_and_unprivileged() -> None:
    last = dict(instructions())  # of each word, in the stage that runs
    base = r"BASE=python:3\.11\.\d+-slim-bookworm@sha256:[0-9a-f]{64}"
    assert re.fullmatch(base, instructions()[0][1])
    assert (last["USER"], last["ENTRYPOINT"]) == ("1000:1000", '["metacount"]')
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert f'image.version="{metacount.__version__}"' in last["LABEL"]
    assert f'image.licenses="{project["license"]}"' in last["LABEL"]


def test_what_is_copied_exists_and_nothing_else_is_sent() -> None:
    ignore = (DOCKER / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    kept = {line[1:] for line in ignore if line.startswith("!")}
    copied = {
        source.split("/")[0]
        for word, rest in instructions()
        if word == "COPY" and "--from=" not in rest
        for source in rest.removeprefix("--chown=1000:1000 ").split()[:-1]
    }
    assert copied == kept
    # where these tests run in the image made for them, the sources of the package are gone
    assert {name for name in kept if not (ROOT / name).exists()} <= {"metacount"}


def test_every_build_argument_of_the_readme_is_one_of_the_dockerfile() -> None:
    declared = {rest.partition("=")[0] for word, rest in instructions() if word == "ARG"}
    given = re.findall(r"--build-arg (\w+)", README)
    assert set(given) == declared == {"BASE", "COMPILER", "TORCH_INDEX", "REVISION"}


def test_the_commands_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [words for words in command_lines() if words[:2] == ["docker", "run"]]
    count, verify, bench, tests = runs
    assert [inside(words)[0] for words in (count, verify, bench)] == ["count", "verify", "bench"]
    assert ["--gpus" in words for words in runs] == [False, False, True, False]
    assert tests[-1] == "metacount-test"

    assert cli.main(inside(count)) == 0
    assert "6,738,415,616" in capsys.readouterr().out  # LLaMA-7B
    config = (ROOT / "benchmarks" / "peer_models" / "llama-7b.json").read_text("utf-8")
    (tmp_path / "config.json").write_text(config, "utf-8")
    monkeypatch.chdir(tmp_path)  # as the mounted folder is in the container
    assert cli.main(inside(verify)) == 0
    assert "6,738,415,616" in capsys.readouterr().out
    # the cases, without running them, on the device that every machine has
    cpu = ["cpu" if word == "cuda" else word for word in inside(bench)]
    assert cpu != inside(bench)
    assert cli.main([*cpu, "--list"]) == 0
    assert "swiglu-joined-compiled" in capsys.readouterr().out
