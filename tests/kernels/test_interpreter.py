"""The corrected interpreter: it converts as arithmetic says, and its self-test notices when it does not."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest
import torch

from kernels import interpreter


@pytest.fixture(scope="module")
def probes(interpreted: None) -> ModuleType:
    from kernels import interpreter_probes

    return interpreter_probes


def test_the_self_test_passes_after_the_corrections(probes: ModuleType) -> None:
    interpreter.self_test()


@pytest.mark.parametrize(
    ("internal", "named"),
    [
        ("_convert_float", "conversion of bfloat16"),
        ("create_dot", "dot"),
        ("binary_op", "arithmetic of bfloat16"),
        ("create_maxnumf", "arithmetic of bfloat16"),
        ("min_max", "reductions"),
    ],
)
def test_the_self_test_names_what_is_wrong(
    probes: ModuleType, monkeypatch: pytest.MonkeyPatch, internal: str, named: str
) -> None:
    """Break one correction at a time."""
    from triton.runtime import interpreter as tritons

    builder = tritons.InterpreterBuilder
    owner = {"_convert_float": tritons, "min_max": tritons.ReduceOps}.get(internal, builder)
    correct = getattr(owner, internal)

    def off_by_one_bit(data: object, *types: object) -> object:
        return correct(data, *types) ^ 1

    def ones(self: object, *arguments: object, **options: object) -> object:
        result = correct(self, *arguments, **options)
        (result.handle if hasattr(result, "handle") else result).data[...] = 1
        return result

    monkeypatch.setattr(owner, internal, off_by_one_bit if internal == "_convert_float" else ones)
    with pytest.raises(interpreter.InterpreterUnreliable, match=named):
        interpreter.self_test()


def test_float8_conversion_is_nearest_even_and_saturates(probes: ModuleType) -> None:
    """Against the format's definition, not torch: the nearest of its values, ties to the even code."""
    code = torch.arange(0x7F)
    exponent, mantissa = code >> 3, (code & 7).double()
    table = torch.where(
        exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7).double()
    )
    ties = (table[:-1] + table[1:]) / 2
    near = torch.cat([ties, ties * (1 + 2.0**-20), ties * (1 - 2.0**-20), torch.tensor([460.0, 480.0, 1e30])])
    source = torch.zeros(1024)
    source[: 2 * near.numel()] = torch.cat([near, -near]).float()
    result = torch.empty(1024, dtype=torch.float8_e4m3fn)
    probes._convert[(1,)](source, result, COUNT=1024)

    magnitude = source.double().abs().clamp(max=448)
    distance = (magnitude.unsqueeze(-1) - table).abs()
    nearest = distance == distance.amin(-1, keepdim=True)
    even = nearest & (code % 2 == 0)
    expected = torch.where(nearest.sum(-1) > 1, even.int().argmax(-1), nearest.int().argmax(-1))
    expected += 128 * torch.signbit(source)
    assert result.view(torch.uint8).tolist() == expected.tolist()


def test_bfloat16_conversion_rounds_ties_to_even(probes: ModuleType) -> None:
    source = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20, -(1 + 2.0**-8)])
    result = torch.empty(4, dtype=torch.bfloat16)
    probes._convert[(1,)](source, result, COUNT=4)
    assert result.tolist() == [1.0, 1 + 2 * 2.0**-7, 1 + 2.0**-7, -1.0]


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )


def test_prepare_comes_too_late_after_triton() -> None:
    done = run(
        "import os; os.environ.pop('TRITON_INTERPRET', None)\n"
        "import triton\n"
        "from kernels import interpreter\n"
        "try: interpreter.prepare()\n"
        "except interpreter.WrongMode as error: print(error)"
    )
    assert done.stdout.startswith("triton is already imported for compiled kernels"), done.stderr


def test_prepare_is_idempotent_and_needs_no_environment() -> None:
    done = run(
        "import os; os.environ.pop('TRITON_INTERPRET', None)\n"
        "from kernels import interpreter\n"
        "interpreter.prepare()\n"
        "from triton.runtime import interpreter as tritons\n"
        "first = tritons.InterpreterBuilder.binary_op\n"
        "interpreter.prepare()\n"
        "assert tritons.InterpreterBuilder.binary_op is first\n"
        "interpreter.self_test()"
    )
    assert done.returncode == 0, done.stderr


def test_as_shipped_the_interpreter_fails_the_self_test() -> None:
    """When a release is right without corrections, this fails: then kernels/interpreter.py can go."""
    done = run(
        "import os; os.environ['TRITON_INTERPRET'] = '1'\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "from kernels import interpreter\n"
        "try: interpreter.self_test()\n"
        "except interpreter.InterpreterUnreliable as error: print(error)"
    )
    assert "triton's interpreter is wrong about" in done.stdout, done.stderr
