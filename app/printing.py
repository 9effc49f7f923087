"""Answers of the API as text for a terminal."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.markup import escape

from app.lookup.origins import origins, place

DEFAULT = " (its default)"
"""How a sentence on an argument that was left out ends."""

MAX_NAMES = 4
"""Names of checks in one line."""


def show_matches(out: Console, answer: dict[str, Any]) -> None:
    """Every match with its captures, then the exceptions that have no record."""
    from catalog.match import kind_of  # the matcher's libraries: only what has matched needs them

    if not answer["hasMatch"]:
        out.print("No record matches this text." + (" The nearest:" if answer["matches"] else ""))
    for index, found in enumerate(answer["matches"]):
        kind = kind_of(found["score"])
        role = "root cause" if index == answer["rootCause"] else found["role"].replace("root-cause", "")
        facts = [place(found), *([role] if role and kind == "match" else []), *origins(found)]
        out.print(f"{found['id']}  {kind} {found['score']:.2f}  {escape(', '.join(facts))}")
        if kind == "similar" or not found["rendered"]:
            # The record's own words: those of the text belong to no record.
            out.print(f"  {escape(found['repo'])}: {escape(found['errorMessage'])}")
            continue
        out.print(f"  {escape(found['errorClass'])}: {escape(found['rendered'])}")
        for capture in found["captures"]:
            out.print(f"  {escape(capture['name'])} = {escape(capture['value'])}")
    for missed in answer["unmatched"]:
        facts = [place(missed), *(["secondary"] if missed["role"] == "secondary" else []), *origins(missed)]
        out.print(f"no record  {escape(', '.join(facts))}")
        name = f"{missed['exception']}: " if missed["exception"] else ""
        out.print(f"  {escape(name)}{escape(missed['message'])}")
        if missed["known"]:
            out.print(f"  {missed['known']['meaning']}")
            out.print(f"  {missed['known']['advice']}")
    if answer["notice"]:
        out.print(answer["notice"])


def show_diagnosis(out: Console, answer: dict[str, Any]) -> None:
    """Verdict, failing checks, fixes with what they cost, and what could not be looked at."""
    raised = answer["raised"]
    out.print(f"[bold]{answer['verdict']}[/bold] at level {answer['level']}")
    if answer["upstream"]:
        _show_upstream(out, answer["upstream"])
    if raised:
        out.print(f"{escape(raised['errorClass'])}: {escape(raised['message'] or '(no text)')}")
    for line in (answer["detail"], answer["disagreement"], (answer["run"] or {}).get("detail")):
        if line:
            out.print(escape(line))
    for check in answer["checks"]:
        if check["status"] == "failed":
            _show_check(out, check)
    unreached = [check["id"] for check in answer["checks"] if check["status"] == "not-reached"]
    if unreached:
        out.print(f"\nnot reached, for want of what failed: {escape(_folded(unreached))}")
    for sentence in answer["advice"]:
        out.print(f"\n[yellow]note[/yellow] {escape(sentence)}")
    for number, fix in enumerate(answer["fixes"], start=1):
        _show_fix(out, number, fix)
    if answer["verdict"] != "passed" and not answer["fixes"]:
        out.print("\nNo fix was found that makes every check pass; the records say what else can be done.")
    for compiled in answer["compilations"] or ():
        out.print(f"\n{escape(_compilation(compiled))}")
    _show_assumed(out, answer["assumed"])


def _show_assumed(out: Console, assumed: list[str]) -> None:
    """What was not given: what was fitted in full, defaults by their names."""
    told = [sentence for sentence in assumed if not sentence.endswith(DEFAULT)]
    defaults = [sentence.partition(" = ")[0] for sentence in assumed if sentence.endswith(DEFAULT)]
    if told:
        out.print("\nassumed:")
    for sentence in told:
        out.print(f"  {escape(sentence)}")
    if defaults:
        out.print(f"left at their defaults: {escape(_folded(defaults))}")


def _folded(names: list[str]) -> str:
    """The first of many names, and how many more there are; `--json` has them all."""
    shown = ", ".join(names[:MAX_NAMES])
    return shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES} more"


def _compilation(compiled: dict[str, Any]) -> str:
    """A kernel compiled for another GPU in one sentence."""
    subject = f"{compiled['kernel']} for {compiled['target']}"
    if compiled["refusal"] is not None:
        return f"{subject} does not compile: {compiled['refusal'].strip().splitlines()[-1]}"
    fits = "fits" if compiled["fits"] else "does not fit"
    memory = f"{compiled['sharedBytes']:,} of {compiled['sharedLimit']:,} bytes of shared memory"
    return f"{subject} compiles and {fits}: {memory}"


def _show_upstream(out: Console, said: dict[str, Any]) -> None:
    """Upstream's own word, which comes first: ours explains it."""
    raised, host = said["raised"], said["host"]
    on = "" if host is None else f" ({host['device'] or 'no GPU: its checks alone'})"
    out.print(f"[bold]upstream {escape(said['outcome'])}[/bold]{escape(on)}")
    if raised:
        out.print(f"  {escape(raised['errorClass'])}: {escape(raised['message'] or '(no text)')}")
    for line in (said["detail"], *said["outside"]):
        if line:
            out.print(f"  {escape(line)}")
    for difference in said["differences"]:
        out.print(f"  [yellow]differs from the checks[/yellow]: {escape(difference)}")


def _show_check(out: Console, check: dict[str, Any]) -> None:
    color = "red" if check["severity"] == "error" else "yellow"
    word = "failed" if check["severity"] == "error" else "warning"
    out.print(f"\n[{color}]{word}[/{color}] {escape(check['id'])}  record {check['recordId']}")
    for occurrence in check["occurrences"]:
        out.print(f"  {escape(occurrence['reason'])}")
        out.print(f"  found     {escape(occurrence['actual'])}")
        out.print(f"  expected  {escape(occurrence['expected'])}")


def _show_fix(out: Console, number: int, fix: dict[str, Any]) -> None:
    safety = "safe" if fix["safe"] else "changes numbers or memory"
    out.print(f"\n[green]fix {number}[/green] {escape(fix['title'])}  ({fix['level']}, {safety})")
    for edit in fix["edits"]:
        place = escape(f"{edit['argument']} {edit['attribute']}")
        out.print(f"  {place}: {escape(json.dumps(edit['from']))} → {escape(json.dumps(edit['to']))}")
    if fix["note"]:
        out.print(f"  {escape(fix['note'])}")
