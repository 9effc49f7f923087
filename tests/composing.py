"""docker-compose.yml through podman-compose: as it is rendered, and what the engine is then told.

No engine is needed: a program that notes what it is called with stands in for podman.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
FILE = ROOT / "docker-compose.yml"
REMOTE = ROOT / "deploy/compose/remote.yml"

PROFILES = {
    "gpu": {"faultbook"},
    "cpu": {"cpu"},
    "rocm": {"rocm"},
    "upstream": {"upstream"},
    "cluster": {"cluster", "api", "redis", "worker"},
    "cluster-cpu": {"cluster", "api", "redis", "cpu-worker"},
}
"""What each starts."""

REACHES = {"REDIS_PASSWORD": "secret", "REDIS_PUBLISH": "10.0.0.5:6379"}
"""What Redis needs to be reached from other hosts."""

STAND_IN = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["TOLD"], "a") as told:
    told.write(json.dumps(sys.argv[1:]) + "\\n")
if "version" in sys.argv[1]:
    print("podman version 5.4.0")
if sys.argv[1] == "ps":
    print("[]")
"""


@dataclass(frozen=True)
class Container:
    """One that the engine is told to create."""

    name: str
    options: Sequence[str]
    image: str
    command: Sequence[str]

    def given(self, *names: str) -> list[str]:
        """Values of an option, whichever of its spellings."""
        apart = [value for name, value in pairwise(self.options) if name in names]
        joined = [option.split("=", 1) for option in self.options if "=" in option]
        return apart + [parts[1] for parts in joined if parts[0] in names]

    @property
    def variables(self) -> dict[str, str]:
        return dict(given.split("=", 1) for given in self.given("-e"))

    @property
    def mounts(self) -> dict[str, str]:
        """Volumes by where they are."""
        parts = [dict(item.split("=") for item in given.split(",")) for given in self.given("--mount")]
        return {part["destination"]: part["source"] for part in parts}


class Compose:
    """podman-compose over this project, with nobody's variables but a test's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told = folder / "told"
        self._asked: dict[tuple[Any, ...], tuple[subprocess.CompletedProcess[str], list[list[str]]]] = {}
        podman = folder / "podman"
        podman.write_text(STAND_IN)
        podman.chmod(0o755)

    def ask(
        self, *arguments: str | Path, **variables: str
    ) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
        """Run it: how it ended, and what the engine was told. Asked again, it answers the same."""
        key = (*arguments, *sorted(variables.items()))
        if key in self._asked:
            return self._asked[key]
        self._told.unlink(missing_ok=True)
        done = subprocess.run(
            [BIN / "podman-compose", *arguments],
            cwd=ROOT,
            env={"PATH": f"{self._folder}:{os.environ['PATH']}", "TOLD": str(self._told), **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        told = [json.loads(line) for line in self._told.read_text("utf-8").splitlines()]
        self._asked[key] = done, told
        return done, told

    def told(self, *arguments: str | Path, **variables: str) -> list[list[str]]:
        done, told = self.ask(*arguments, **variables)
        assert done.returncode == 0, done.stderr
        return told

    def rendered(self, profile: str, *paths: Path, **variables: str) -> str:
        named = [argument for path in paths for argument in ("-f", path)]
        done, _ = self.ask(*named, "config", **_profile(profile), **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def services(self, profile: str, *paths: Path, **variables: str) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = yaml.safe_load(self.rendered(profile, *paths, **variables))[
            "services"
        ]
        return found

    def containers(self, profile: str, **variables: str) -> dict[str, Container]:
        """By service; replicas are alike."""
        told = self.told("up", "-d", "--no-build", **_profile(profile), **variables)
        return dict(container_of(call) for call in told if call[0] == "create")

    def builds(self, profile: str, **variables: str) -> dict[str, list[str]]:
        """What is told of each image that is built, by its name."""
        told = self.told("build", **_profile(profile), **variables)
        return {call[call.index("-t") + 1]: call for call in told if call[0] == "build"}


def _profile(profile: str) -> dict[str, str]:
    return {"COMPOSE_PROFILES": profile} if profile else {}


def container_of(call: list[str]) -> tuple[str, Container]:
    service = next(part.partition("=")[2] for part in call if part.startswith("io.podman.compose.service="))
    image = max(
        number
        for number, part in enumerate(call)
        if re.fullmatch(r"[\w./-]+:[\w.-]+", part) and call[number - 1] not in ("-e", "-v", "-p")
    )
    return service, Container(service, call[1:image], call[image], call[image + 1 :])


def arguments_of(build: list[str]) -> dict[str, str]:
    return dict(value.split("=", 1) for name, value in pairwise(build) if name == "--build-arg")
