"""The kernels compile for architectures that this host lacks; the compiler's refusals arrive as its own text.

`<folder>/compilations.py` beside an operation's tests has `variants(target)`, REFUSED where a target cannot
do it, and MOST_SHARED where a kernel needs next to no shared memory. The work runs in another process, one a
folder: this one may interpret kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernels.offline import SHARED_MEMORY, TARGETS

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import json, sys
from importlib import import_module
from kernels import offline

module = import_module(sys.argv[1])
found = []
for target in offline.TARGETS:
    for name, variant in module.variants(target):
        try:
            compiled = offline.compile_for(target, variant)
        except offline.NotCompilable as error:
            found.append([target, name, str(error), 0, 0])
        else:
            found.append([target, name, compiled.kind, len(compiled.binary), compiled.shared_bytes])
refused = [[*key, words] for key, words in getattr(module, "REFUSED", {}).items()]
json.dump([found, refused, getattr(module, "MOST_SHARED", None)], sys.stdout)
"""

FOLDERS = sorted(path.parent.name for path in Path(__file__).parent.glob("*/compilations.py"))


@dataclass(frozen=True)
class Results:
    """found: [target, name, kind or the compiler's refusal, bytes of code, bytes of shared memory]."""

    found: list[tuple[str, str, str, int, int]]
    refused: dict[tuple[str, str], str]
    most_shared: int | None


@pytest.fixture(scope="module", params=FOLDERS)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"tests.kernels.{request.param}.compilations"],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    found, refused, most_shared = json.loads(done.stdout)
    words = {(target, name): text for target, name, text in refused}
    return Results([tuple(each) for each in found], words, most_shared)


def test_every_folder_with_a_kernel_states_its_compilations() -> None:
    kernels = Path(__file__).parents[2] / "kernels"
    assert {path.parent.name for path in kernels.glob("*/kernel.py")} <= set(FOLDERS)


def test_every_variant_compiles_and_fits_the_device(results: Results) -> None:
    assert {target for target, *_ in results.found} == set(TARGETS)
    for target, name, kind, size, shared in results.found:
        if (target, name) not in results.refused:
            assert size > 1000, (target, name, kind)
            assert kind == ("hsaco" if target.startswith("gfx") else "cubin")
            assert shared <= (results.most_shared or SHARED_MEMORY[target]), (target, name)


def test_what_an_architecture_lacks_is_refused_in_the_compilers_words(results: Results) -> None:
    said = {(target, name): kind for target, name, kind, size, _ in results.found if not size}
    assert said.keys() == results.refused.keys()
    for key, words in results.refused.items():
        assert words in said[key]
