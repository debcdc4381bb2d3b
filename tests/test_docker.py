"""docker/ agrees with the project: pins, version, user, copied files, and the README's commands."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.command_line import Ask
from packaging.requirements import Requirement
from packaging.version import Version

import metacount

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
    files = (ROOT / "constraints.txt", DOCKER / "constraints-cuda.txt")
    ours, cuda = (pins(file.read_text("utf-8")) for file in files)
    # the first is torch, whose dependencies the second lists
    assert (ours["torch"], cuda["triton"]) == ("2.13.0", "3.7.1")
    assert not ours.keys() & cuda.keys()


def test_the_image_is_pinned_labelled_and_unprivileged() -> None:
    last = dict(instructions())  # of each word, in the stage that runs
    base = r"BASE=python:3\.11\.\d+-slim-bookworm@sha256:[0-9a-f]{64}"
    assert re.fullmatch(base, instructions()[0][1])
    assert (last["USER"], last["ENTRYPOINT"]) == ("1000:1000", '["metacount"]')
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert f'image.version="{metacount.__version__}"' in last["LABEL"]
    assert f'image.licenses="{project["license"]}"' in last["LABEL"]
    declared = {rest.partition("=")[0] for word, rest in instructions() if word == "ARG"}
    given = re.findall(r"--build-arg (\w+)", README)
    assert set(given) == declared == {"BASE", "COMPILER", "TORCH_INDEX", "REVISION"}


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


def test_the_commands_of_the_readme_run(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [words for words in command_lines() if words[:2] == ["docker", "run"]]
    assert ["--gpus" in words for words in runs] == [False, False, True, False]
    assert runs[3][-1] == "metacount-test"
    # what is handed to metacount, behind the name of the image
    inside = [re.split(" metacount(?::cuda)? ", " ".join(words))[1] for words in runs[:3]]
    assert [line.split()[0] for line in inside] == ["count", "verify", "bench"]
    config = (ROOT / "benchmarks" / "peer_models" / "llama-7b.json").read_text("utf-8")
    (tmp_path / "config.json").write_text(config, "utf-8")
    monkeypatch.chdir(tmp_path)  # as the mounted folder is in the container
    for line in inside[:2]:
        assert "6,738,415,616" in ask.all(line)[1]  # LLaMA-7B
    # the cases, without running them, on the device that every machine has
    cpu = inside[2].replace("cuda", "cpu")
    assert cpu != inside[2] and "swiglu-joined-compiled" in ask(f"{cpu} --list")


# ---- versions that pyproject.toml allows


ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PRIVATE = ("torch", "transformers")  # whose private names are used


def allowed() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(text) for group in (PROJECT["dependencies"], *extras) for text in group]


def pinned() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = (line.split("==") for line in lines if "==" in line)
    return {name: Version(version) for name, version in pins}


def test_what_is_tested_is_allowed() -> None:
    for one in allowed():
        assert pinned()[one.name] in one.specifier, one
        assert any(bound.operator == ">=" for bound in one.specifier), one


def test_no_library_whose_private_names_are_used_may_be_newer() -> None:
    found = {one.name: one.specifier for one in allowed() if one.name in PRIVATE}
    assert set(found) == set(PRIVATE)
    for name, specifier in found.items():
        version = pinned()[name]
        later = Version(f"{version.major}.{version.minor + 1}")
        assert later not in specifier, f"{name} {later} was not tested"
        assert Version(f"{version.major}.{version.minor}.99") in specifier, name
