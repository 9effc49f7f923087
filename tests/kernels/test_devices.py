"""Launches: kept kernels are told apart by what they were compiled for; a CPU has nothing to overlap."""

from __future__ import annotations

import sys

import pytest
import torch

from kernels import devices

CPU = torch.device("cpu")


def test_a_cpu_overlaps_no_launches_and_limits_no_memory() -> None:
    assert not devices.overlaps_launches(CPU)
    assert devices.shared_memory(CPU) == sys.maxsize


def test_kernels_run_on_the_cpu_once_the_process_interprets_them(interpreted: None) -> None:
    assert devices.runs_kernels(CPU)


def test_asking_imports_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    assert not devices.runs_kernels(CPU)
    assert devices.runs_kernels(torch.device("cuda", 0))
    assert "triton" not in sys.modules


def copied(source: torch.Tensor, target: torch.Tensor, **options: object) -> bool:
    from tests.kernels.copying import copy_kernel

    count = source.numel()
    target.view(torch.uint8).fill_(0xA5)
    grid = (-(-count // 128), 1, 1)
    devices.launch(source.device, copy_kernel, grid, (source, target), (count, 128), **options)
    return torch.equal(source, target)


def test_an_interpreted_kernel_is_launched(interpreted: None) -> None:
    source = torch.arange(300)
    assert copied(source, torch.empty_like(source), num_warps=4)
    assert not devices._kept


@pytest.mark.gpu
def test_types_alignments_and_sizes_are_told_apart(compiled: None) -> None:
    for dtype in (torch.int32, torch.float16, torch.int8):
        buffer = torch.randint(100, (2000,), device="cuda").to(dtype)
        target = torch.empty(2000, dtype=dtype, device="cuda")
        for count in (1, 16, 128, 1000, 1024):
            for start in (0, 1, 16, 3):
                for _ in range(2):
                    assert copied(buffer[start : start + count], target[start : start + count], num_warps=2)


@pytest.mark.gpu
def test_a_kept_kernel_takes_the_current_stream(compiled: None) -> None:
    source = torch.arange(1 << 20, device="cuda")
    target = torch.empty_like(source)
    assert copied(source, target, num_warps=4)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        source.add_(1)
        assert copied(source, target, num_warps=4)


@pytest.mark.gpu
def test_the_kept_are_bounded(compiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "MOST_KEPT", 3)
    for count in range(1, 10):
        source = torch.arange(count, device="cuda")
        assert copied(source, torch.empty_like(source), num_warps=1)
        assert len(devices._kept) <= 3
