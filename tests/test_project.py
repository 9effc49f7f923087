"""Laws of the project itself: what it depends on, what it ships, its commands, what it must not name."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
GROUPS: dict[str, list[str]] = {
    "Service": PROJECT["project"]["dependencies"],
    "Cluster": PROJECT["project"]["optional-dependencies"]["cluster"],
    "Worker": PROJECT["project"]["optional-dependencies"]["worker"],
    "Telemetry": PROJECT["project"]["optional-dependencies"]["telemetry"],
    "Development": PROJECT["project"]["optional-dependencies"]["dev"],
}
PACKAGES = ("app", "catalog", "kernels")
CHECKS = sorted((ROOT / "kernels").glob("*/checks.py"))

# Found by name at run time by uvicorn, never imported by our code.
LOADED_BY_UVICORN = {"httptools", "uvloop"}

# Imported in another interpreter, the one that has the package a call is compared with.
OF_UPSTREAM = {"sglang", "tvm_ffi"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required_name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return normal(found[0])


def names(*groups: str) -> set[str]:
    return {required_name(requirement) for group in groups for requirement in GROUPS[group]}


@cache
def committed() -> tuple[PurePosixPath, ...]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    present = (PurePosixPath(name) for name in listed.stdout.split("\0") if name)
    return tuple(path for path in present if (ROOT / path).is_file())


def python_files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported_modules(path: Path) -> Iterator[str]:
    """Every absolute module named by an import statement, wherever in the file it stands."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


@cache
def holds(owner: str, module: str) -> bool:
    """Whether a distribution brings this module: several share one top-level package."""
    path = module.replace(".", "/")
    return {f"{path}.py", f"{path}/__init__.py"} & set(map(str, distribution(owner).files or ())) != set()


@cache
def third_party(package: str) -> dict[str, set[str]]:
    """Distribution → the files of `package` that import it."""
    owners = packages_distributions()
    found: dict[str, set[str]] = {}
    for path in python_files(package):
        for module in set(imported_modules(path)):
            top = module.partition(".")[0]
            if top in sys.stdlib_module_names or top in {*PACKAGES, *OF_UPSTREAM, "tests", "benchmarks"}:
                continue
            sharing = owners.get(top, [f"unknown distribution of {top}"])
            for owner in [one for one in sharing if len(set(sharing)) == 1 or holds(one, module)]:
                found.setdefault(normal(owner), set()).add(str(path.relative_to(ROOT)))
    return found


# --- dependencies


@pytest.mark.parametrize("group", GROUPS)
def test_each_dependency_has_its_reason_written_down(group: str) -> None:
    text = (ROOT / "docs/dependencies.md").read_text("utf-8")
    section = re.split(r"^## ", text, flags=re.MULTILINE)
    [table] = [part for part in section if part.startswith(group)]
    rows = re.findall(r"^\| ([a-z0-9][a-z0-9-]*) \| (\S.+) \|$", table, flags=re.MULTILINE)
    documented = [name for name, _ in rows if name != "package"]
    assert documented == sorted(names(group))


@pytest.mark.parametrize(
    ("folder", "groups"),
    [(package, ("Service", "Cluster", "Worker", "Telemetry")) for package in PACKAGES]
    + [(folder, tuple(GROUPS)) for folder in ("tests", "benchmarks")],
)
def test_sources_import_only_what_is_declared(folder: str, groups: tuple[str, ...]) -> None:
    undeclared = third_party(folder).keys() - names(*groups)
    assert {name: sorted(third_party(folder)[name]) for name in undeclared} == {}


def test_each_declared_dependency_is_used() -> None:
    used = {name for package in PACKAGES for name in third_party(package)}
    assert names("Service", "Cluster", "Worker") - used - LOADED_BY_UVICORN == set()


def pins(file: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / file).read_text("utf-8").splitlines()
    stated = [line for line in lines if line and not line.startswith("#")]
    for line in stated:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line), f"{file}: {line!r} is not an exact version"
    return {name: version for name, _, version in (line.partition("==") for line in stated)}


def test_everything_installed_is_pinned_exactly() -> None:
    pinned = pins("constraints.txt") | pins("torch.txt")
    missing = set()
    todo = sorted(names(*GROUPS))
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in pinned:
            missing.add(name)
        for requirement in distribution(name).requires or []:
            if ";" not in requirement:
                todo.append(required_name(requirement))
    assert not missing
    build = PROJECT["build-system"]["requires"]
    assert build == [f"setuptools=={pinned['setuptools']}"]


@pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="not the environment of `make setup`")
def test_the_environment_is_the_pinned_one() -> None:
    differing = {
        name: (version, installed)
        for name, version in pins("constraints.txt").items()
        if (installed := distribution(name).version) != version
    }
    assert not differing


# --- layers


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


def test_checks_import_with_nothing_but_the_standard_library() -> None:
    """Checks run wherever Python does: on a host without torch, and inside upstream's own environment."""
    modules = ["kernels.registry", *(f"kernels.{path.parent.name}.checks" for path in CHECKS)]
    done = run("-S", "-c", f"import sys; sys.path.insert(0, '.'); import {', '.join(modules)}")
    assert done.returncode == 0, done.stderr


def test_the_web_app_loads_neither_torch_nor_triton() -> None:
    """Neither by being imported nor by being built, when every capability's routes are imported."""
    done = run(
        "-c",
        "import sys, app.main\n"
        "app.main.create_app()\n"
        "heavy = {'torch', 'triton', 'safetensors'} & set(sys.modules)\n"
        "sys.exit(f'the web app loaded {sorted(heavy)}' if heavy else 0)",
    )
    assert done.returncode == 0, done.stderr


# --- what is shipped


def test_a_wheel_holds_every_file_of_the_packages() -> None:
    """Records, templates, static files: whatever is committed inside a package is package data."""
    data = PROJECT["tool"]["setuptools"]["package-data"]
    for package in PACKAGES:
        shipped = {path for pattern in data[package] for path in (ROOT / package).glob(pattern)}
        left_out = [
            str(path)
            for path in committed()
            if path.parts[0] == package and path.suffix != ".py" and ROOT / path not in shipped
        ]
        assert not left_out


def test_every_folder_with_python_in_it_is_a_package() -> None:
    folders = {path.parent for package in PACKAGES for path in python_files(package)}
    assert sorted(str(folder) for folder in folders if not (folder / "__init__.py").is_file()) == []


def test_the_image_is_built_from_what_it_copies() -> None:
    """.dockerignore lets through each package and each file that the build reads."""
    allowed = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    for name in (*PACKAGES, "requirements"):
        assert f"!{name}/" in allowed
    for name in ("pyproject.toml", PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]):
        assert f"!{name}" in allowed


def test_compose_asks_for_health_as_the_image_does() -> None:
    image = re.search(
        r"^HEALTHCHECK .* CMD \[(.*)\]$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE
    )
    assert image
    assert f'test: ["CMD", {image[1]}]' in (ROOT / "docker-compose.yml").read_text("utf-8")


# --- what a reader and CI run


def test_the_readme_opens_with_the_two_commands() -> None:
    block = re.search(
        r"^```\w*\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    assert block
    commands = [line.partition("#")[0].strip() for line in block[1].splitlines()]
    assert [command for command in commands if command] == ["make serve", "make test"]


def test_ci_runs_the_tests_and_the_checks() -> None:
    lines = (ROOT / ".ci/run").read_text("utf-8").splitlines()
    assert "set -euo pipefail" in lines
    assert [line for line in lines if line.startswith("make")] == ["make test", "make check"]


def test_the_targets_promised_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    defined = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    assert {"setup", "serve", "test", "check", "bench", "format", "clean"} <= defined


# --- what no committed file may name


# Spelled so that this file does not match itself.
FORBIDDEN = {
    "a folder of one machine": rb"/(?:work/(?:main|shared|\.library)|opt/(?:wheels|pypi)|tmp/fb)\b",
    "a package registry's host": rb"\b(?:pypi|pythonhosted|npmjs|deb\.debian)\.(?:org|com)\b",
    "a direct file requirement": rb"@ ?file[:]",
    "a private key": rb"-----BEGIN [A-Z ]*PRIVATE KEY",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_committed_file_names(what: str) -> None:
    hits = [
        (str(path), content.count(b"\n", 0, hit.start()) + 1, hit[0])
        for path in committed()
        for content in [(ROOT / path).read_bytes()]
        for hit in re.finditer(FORBIDDEN[what], content)
    ]
    assert not hits
