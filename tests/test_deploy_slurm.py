"""The recipes of Slurm: their directives by its own list and its own program, and what they do when run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deployed import DEPLOY, Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


WORKER = DEPLOY / "slurm/worker.sbatch"
SERVE = DEPLOY / "slurm/serve.sbatch"
ADDRESS = "rediss://:secret@queue:6379/0"

OPTIONS = frozenset(
    line
    for line in (Path(__file__).parent / "data/sbatch_options.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
)
"""Every long option of sbatch; the file says of which version."""

FORMS = {
    "job-name": r"[a-z-]+",
    "ntasks": r"[1-9]\d*",
    "gres": r"gpu(:\w+)?:[1-9]",
    "cpus-per-task": r"[1-9]\d*",
    "mem": r"[1-9]\d*[KMGT]",
    "time": r"(\d+-)?\d\d:\d\d:\d\d",
    "signal": r"B:(TERM|USR1|USR2)@[1-9]\d*",
    "requeue": None,
    "open-mode": r"append|truncate",
    "output": r"[\w%-]+\.log",
}
"""Values of the options that the recipes use, after sbatch(1)."""

RECIPES = pytest.mark.parametrize("recipe", [WORKER, SERVE], ids=lambda path: path.stem)
slurm = pytest.mark.skipif(shutil.which("sbatch") is None, reason="no sbatch on this host")


def directives(recipe: Path) -> list[str]:
    return [line for line in recipe.read_text("utf-8").splitlines() if line.startswith("#SBATCH")]


@RECIPES
def test_directives_are_those_of_sbatch(recipe: Path) -> None:
    assert directives(recipe)
    for line in directives(recipe):
        found = re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(\S+))?", line)
        assert found, line
        assert found[1] in OPTIONS, line
        form = FORMS[found[1]]
        assert (found[2] is None) if form is None else re.fullmatch(form, found[2] or ""), line


@RECIPES
def test_directives_come_before_the_first_command(recipe: Path) -> None:
    """sbatch reads none after it."""
    lines = recipe.read_text("utf-8").splitlines()
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    last_directive = max(number for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert last_directive < first_command


@pytest.fixture
def sbatch(tmp_path: Path) -> Callable[..., str]:
    """The real one, of a cluster that nobody answers for: what it says."""
    settings = tmp_path / "slurm.conf"
    settings.write_text(
        "ClusterName=none\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\nMessageTimeout=1\n"
        "AuthType=auth/none\nCredType=cred/none\nGresTypes=gpu\nNodeName=localhost\n"
        "PartitionName=all Nodes=ALL Default=YES\n"
    )

    def ask(*arguments: str | Path) -> str:
        done = subprocess.run(
            ["sbatch", *arguments],
            env={"PATH": os.environ["PATH"], "SLURM_CONF": str(settings)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout + done.stderr

    return ask


@slurm
def test_what_sbatch_prints_is_in_the_list(sbatch: Callable[..., str]) -> None:
    if " 22.05." not in sbatch("--version"):
        pytest.skip("the list is of Slurm 22.05")
    printed = set(re.findall(r"^\s+(?:-\w,?\s+)?--([a-z-]+)", sbatch("--help"), re.MULTILINE))
    assert len(printed) > 80
    assert printed <= OPTIONS


@slurm
@RECIPES
@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("", "", "Unable to contact slurm controller"),
        ("--gres=", "--grse=", "unrecognized option '--grse"),
        ("--gres=gpu:1", "--gres=card:1", "Invalid generic resource"),
        ("--mem=16G", "--mem=16X", "Invalid --mem specification"),
        ("--time=08:00:00", "--time=8hours", "Invalid --time specification"),
        ("--signal=B:TERM@60", "--signal=B:TERN@60", "Invalid --signal specification"),
    ],
)
def test_sbatch_itself_reads_the_directives(
    sbatch: Callable[..., str], tmp_path: Path, recipe: Path, right: str, wrong: str, said: str
) -> None:
    """It reads all of them before it asks for the cluster."""
    script = tmp_path / recipe.name
    text = recipe.read_text("utf-8")
    assert right in text
    script.write_text(text.replace(right, wrong) if right else text)
    assert said in sbatch("--test-only", script)


@pytest.fixture
def broker(host: Host) -> Path:
    file = host.folder / "broker"
    file.write_text(ADDRESS + "\n")
    file.chmod(0o600)
    host.environment |= {
        "SLURM_JOB_ID": "4711",
        "SLURM_SUBMIT_DIR": str(host.folder),
        "SLURM_TMPDIR": str(host.folder / "scratch"),
        "FAULTBOOK_VENV": str(host.folder / "venv"),
        "FAULTBOOK_BROKER_FILE": str(file),
    }
    (host.folder / "scratch").mkdir()
    return file


def test_a_worker_gets_its_broker_and_a_folder_on_the_node(host: Host, broker: Path) -> None:
    done = host.run(WORKER)
    assert done.returncode == 0, done.stderr
    [(arguments, seen)] = host.calls()
    assert arguments == ["worker"]
    assert seen["FAULTBOOK_BROKER_URL"] == ADDRESS
    assert seen["FAULTBOOK_DEVICE"] == "cuda"
    assert seen["TRITON_CACHE_DIR"].startswith(str(host.folder / "scratch/faultbook-"))
    assert ADDRESS not in done.stdout + done.stderr
    assert list((host.folder / "scratch").iterdir()) == [], "the folder goes with the job"


def test_a_password_that_others_may_read_is_refused(host: Host, broker: Path) -> None:
    broker.chmod(0o644)
    done = host.run(WORKER)
    assert done.returncode == 1
    assert "chmod 600" in done.stderr
    assert host.calls() == []


@RECIPES
def test_an_environment_without_faultbook_is_named(host: Host, broker: Path, recipe: Path) -> None:
    done = host.run(recipe, FAULTBOOK_VENV="/nowhere", FAULTBOOK_API_KEYS_FILE="keys")
    assert done.returncode == 1
    assert "no faultbook in /nowhere" in done.stderr


def test_serving_on_a_shared_node_needs_keys(host: Host, broker: Path) -> None:
    done = host.run(SERVE)
    assert done.returncode != 0
    assert "FAULTBOOK_API_KEYS_FILE" in done.stderr
    assert host.calls() == []


def test_jobs_of_one_node_do_not_share_a_port(host: Host, broker: Path) -> None:
    said = []
    for job in ("4711", "4712"):
        done = host.run(SERVE, SLURM_JOB_ID=job, FAULTBOOK_API_KEYS_FILE="keys")
        [(_, seen)] = host.calls()
        host.log.unlink()
        assert f"127.0.0.1:{seen['FAULTBOOK_PORT']}" in done.stdout
        said.append(seen["FAULTBOOK_PORT"])
    assert said == ["24711", "24712"]


def test_the_end_of_an_allocation_reaches_the_worker(host: Host, broker: Path) -> None:
    """Slurm signals the batch shell alone; what it waits for must hear of it and be waited for."""
    up = host.folder / "up"
    process = subprocess.Popen([WORKER], env=host.environment | {"STAY": str(up)})
    try:
        for _ in range(300):
            if up.exists():
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 7, "the worker's own status"
    finally:
        process.kill()
    assert host.commands() == ["worker", "ended"]
    assert list((host.folder / "scratch").iterdir()) == []
