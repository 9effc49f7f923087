"""What all tests share: GPU tests are shown as skipped, with the reason, where torch sees no CUDA device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from kernels import interpreter

# A test is right or wrong on a busy machine too; pytest's own limit ends one that hangs.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def no_data_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the user has indexed is not what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import torch  # two seconds: only a run that collected a GPU test pays for it

    if torch.cuda.is_available():
        return
    # Before a test lets torch import triton for compiled kernels: the mode is for good.
    interpreter.prepare()
    for item in on_gpu:
        item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def triton_mode() -> None:
    """Triton's one mode a process, chosen before torch imports it by itself, as fake tensors make it do."""
    import torch

    if not torch.cuda.is_available():
        interpreter.prepare()


@pytest.fixture(scope="session")
def compiled() -> None:
    """Kernels of this process run on the GPU; import kernel modules after it."""
    if interpreter.is_interpreting():
        pytest.skip("this process interprets kernels")
