"""The commit that records of our own checks refer to."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from catalog import commit

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(commit.VARIABLE, raising=False)


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *arguments],
        cwd=folder,
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main", "repository")
    folder = tmp_path / "repository"
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


def test_the_variable_counts_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(commit.VARIABLE, f" {SHA.upper()} ")
    assert commit.built_from.__wrapped__() == SHA


def test_a_variable_that_is_no_commit_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    monkeypatch.setenv(commit.VARIABLE, "v1.0")
    monkeypatch.setattr(commit, "ROOT", repository)
    assert commit.built_from.__wrapped__() == git(repository, "rev-parse", "HEAD")


def test_without_history_it_is_zeros(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(commit, "ROOT", tmp_path)
    assert commit.built_from.__wrapped__() == "0" * 40


def test_head_of_a_branch_of_packed_refs_detached_and_of_a_worktree(repository: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    assert commit.head(repository / ".git") == first

    git(repository, "worktree", "add", "-q", "-b", "side", "../side")
    git(repository.parent / "side", "commit", "-q", "--allow-empty", "-m", "second")
    second = git(repository, "rev-parse", "side")
    assert commit.head(repository.parent / "side" / ".git") == second != first

    git(repository, "pack-refs", "--all")
    assert commit.head(repository / ".git") == first
    assert commit.head(repository.parent / "side" / ".git") == second

    git(repository, "checkout", "-q", "--detach", second)
    assert commit.head(repository / ".git") == second
