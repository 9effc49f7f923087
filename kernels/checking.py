"""Checks declared once, walked two ways.

A check is a class, a violation is an instance of it, and the instance's printed fields fill the message's
holes in order. `guard` raises the first violation, as upstream does; `examine` lists every check as passed,
failed or not reached. Both consume the same lazy walk.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from kernels.call import Call, Edit, shown
from kernels.message import render
from kernels.upstream import Site

S = TypeVar("S")
C = TypeVar("C", bound=Call)

Category = Literal[
    "type",
    "presence",
    "dtype",
    "device",
    "shape",
    "divisibility",
    "layout",
    "alignment",
    "overlap",
    "values",
    "format",
]


class Severity(Enum):
    """What happens when the check is ignored: an error stops or corrupts, a warning only looks wrong."""

    ERROR = "error"
    WARNING = "warning"


class Origin(Enum):
    """Who checks: upstream's own code, or only we do."""

    UPSTREAM = "upstream"
    BEYOND = "beyond"


class Status(Enum):
    """Outcome of one check for one call."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_REACHED = "not-reached"


@dataclass(frozen=True, slots=True)
class Fix(Generic[C]):
    """A call that no longer breaks the check.

    safe    the numbers computed and the memory touched stay what the caller meant
    note    what it costs, where it costs something
    """

    title: str
    call: C
    safe: bool
    note: str = ""

    def edits(self, original: C) -> tuple[Edit, ...]:
        """What to change in the original call."""
        return original.edits_to(self.call)


def aside(**kwargs: Any) -> Any:
    """A violation's field that is kept but not printed into the message."""
    return dataclasses.field(metadata={"aside": True}, **kwargs)


class Check(Generic[S]):
    """One condition on a subject S: a call, or one item of it (a checkpoint's layer)."""

    raises: ClassVar[type[Exception]]
    message: ClassVar[str] = ""
    """Upstream's letters, holes too; "" when upstream raises without a text."""
    sites: ClassVar[tuple[Site, ...]] = ()
    """Where upstream raises it, in path and line order; empty for a check of our own."""
    formerly: ClassVar[tuple[str, ...]] = ()
    """What earlier versions said in its place, templates as they wrote them, the oldest first."""
    said_elsewhere: ClassVar[tuple[str, ...]] = ()
    """What another library says when it stops a call for this reason, this one or any other of its calls."""
    reason: ClassVar[str]
    """Why it fails, one sentence; `{field}` names a field of the violation."""
    looks_at: ClassVar[tuple[str, ...]] = ()
    """What it reads: `output_s.dtype`, `group_size`."""
    requires: ClassVar[str]
    """What would pass, in the terms of `looks_at`."""
    category: ClassVar[Category]
    severity: ClassVar[Severity] = Severity.ERROR
    premises: ClassVar[tuple[type[Check[Any]], ...]] = ()
    """Checks without which this one cannot be evaluated."""
    reads_values: ClassVar[bool] = False
    """Needs elements, not only the description; a live guard skips it, since reading would synchronise."""
    pythons_own: ClassVar[bool] = False
    """Raised by Python or torch on upstream's behalf; its text is nobody's template."""
    at_launch: ClassVar[bool] = False
    """Raised while kernels are launched or behind that: a host without a GPU cannot see it."""
    unreachable: ClassVar[str] = ""
    """Why no call reaches it, where none does."""

    @classmethod
    def id(cls) -> str:
        """Permanent name within the operation: the class name in snake case."""
        return _snake(cls.__name__)

    @classmethod
    def origin(cls) -> Origin:
        """Whose check it is."""
        return Origin.UPSTREAM if cls.sites or cls.pythons_own else Origin.BEYOND

    @classmethod
    @cache
    def arguments(cls) -> tuple[str, ...]:
        """Arguments it reads, in the order of `looks_at`."""
        return tuple(dict.fromkeys(path.partition(".")[0] for path in cls.looks_at))

    @classmethod
    def error_message(cls) -> str:
        """What identifies its record: the text, or the source expression of a site without one."""
        return cls.message or cls.sites[0].expression

    @classmethod
    def evaluable(cls, subject: S, /) -> bool:
        """Whether a subject has what the check evaluates; premises hold for a whole call and cannot tell."""
        return True

    @classmethod
    def find(cls, subject: S, /) -> Iterator[Self]:
        """The violations in a subject, in upstream's order."""
        raise NotImplementedError(cls.__name__)

    def fixes(self, subject: S, /) -> Iterable[Fix[Any]]:
        """Calls that pass this check, the smallest change first."""
        return ()

    def library_fault(self, subject: S, /) -> str:
        """Why the library is at fault and not the call, a clause; empty where the call is."""
        return ""

    def remedy(self, subject: S, /) -> str:
        """What can be done besides an edit of the call, a clause; empty where edits do."""
        return ""

    @classmethod
    def example(cls) -> Call | None:
        """A call that breaks this check before any other; None when `unreachable`."""
        return None

    @property
    def text(self) -> str:
        """What a user of upstream sees."""
        return render(self.message, self.printed()) if self.message else ""

    def printed(self) -> list[object]:
        """Values of the fields that fill the message's holes; none where upstream prints no text."""
        if not self.message:
            return []
        return [getattr(self, name) for name in self.printed_fields()]

    @classmethod
    @cache
    def printed_fields(cls) -> tuple[str, ...]:
        """Names of the fields that fill the message's holes, in order."""
        return tuple(field.name for field in dataclasses.fields(cls) if not field.metadata.get("aside"))  # type: ignore[arg-type]

    def explain(self) -> str:
        """The reason with this violation's values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        return self.reason.format_map(values)

    def describe_expected(self, subject: S, /) -> str:
        """What would pass."""
        return self.requires

    def describe_actual(self, subject: S, /) -> str:
        """What was found, in the caller's own terms."""
        return ", ".join(f"{path} = {shown(subject, path)}" for path in self.looks_at)

    def blames(self, subject: S, /) -> tuple[str, ...]:
        """Arguments that this violation is about."""
        return self.arguments()

    def exception(self) -> Exception:
        """The exception upstream raises, with this violation attached as `violation`."""
        error = self.raises(self.text) if self.text else self.raises()
        error.violation = self  # type: ignore[attr-defined]
        return error


class LauncherCheck(Check[S]):
    """A check of the compiled launcher, which prefixes its text with the file and line that failed."""

    raises = RuntimeError

    @property
    def site(self) -> Site:
        """The site that reports this violation; several variants of a launcher have one each."""
        return self.sites[0]

    @property
    def place(self) -> str:
        """`path:line` of the site, at the pinned commit where that has it."""
        return ":".join((self.site.file.path, *map(str, self.site.lines[:1])))

    @property
    def text(self) -> str:
        return f"Failed at {self.place}: {super().text}"


@dataclass(frozen=True, slots=True)
class Each:
    """Runs all checks of one item before the next item, as a loop in upstream does.

    select   which of the checks are an item's, where items are of several kinds
    blocks   a check that fails in one item fails as a premise of later stages
    """

    items: Callable[[Any], Iterable[Any]]
    checks: tuple[type[Check[Any]], ...]
    premises: tuple[type[Check[Any]], ...] = ()
    select: Callable[[Any], tuple[type[Check[Any]], ...]] | None = None
    blocks: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Turns the call into what upstream goes on with, such as outputs it allocates itself."""

    run: Callable[[Any], Any]
    premises: tuple[type[Check[Any]], ...] = ()


@dataclass(frozen=True, slots=True)
class Given:
    """Checks that share premises, besides their own."""

    premises: tuple[type[Check[Any]], ...]
    checks: tuple[type[Check[Any]], ...]


Stages = Sequence["type[Check[Any]] | Given | Each | Step"]


@dataclass(frozen=True, slots=True)
class Event:
    """One check evaluated on one subject."""

    check: type[Check[Any]]
    status: Status
    subject: Any
    violations: tuple[Check[Any], ...] = ()


def walk(
    stages: Stages, call: Call, *, values: bool = True, blocked: set[type[Check[Any]]] | None = None
) -> Iterator[Event]:
    """Evaluate checks lazily in upstream's order; `values=False` leaves out those that read elements.

    blocked   the checks that earlier stages leave unmet; those of these stages are added to it
    """
    blocked = set() if blocked is None else blocked
    subject: Any = call
    for stage in stages:
        if isinstance(stage, Step):
            if blocked.isdisjoint(stage.premises):
                subject = stage.run(subject)
        elif isinstance(stage, Each):
            yield from _walk_items(stage, subject, blocked, values)
        elif isinstance(stage, Given):
            given = blocked.isdisjoint(stage.premises)
            for check in stage.checks:
                yield from _walk_check(check, subject, blocked, given, values)
        else:
            yield from _walk_check(stage, subject, blocked, True, values)


def _walk_check(
    check: type[Check[Any]], subject: Any, blocked: set[type[Check[Any]]], given: bool, values: bool
) -> Iterator[Event]:
    if check.reads_values and not values:
        return
    event = evaluate(check, subject, blocked) if given else Event(check, Status.NOT_REACHED, subject)
    if event.status is not Status.PASSED:
        blocked.add(check)
    yield event


def _walk_items(loop: Each, subject: Any, blocked: set[type[Check[Any]]], values: bool) -> Iterator[Event]:
    checks = [check for check in loop.checks if values or not check.reads_values]
    if not blocked.isdisjoint(loop.premises):
        for check in checks:
            blocked.add(check)
            yield Event(check, Status.NOT_REACHED, subject)
        return
    before = set(blocked)
    for item in loop.items(subject):
        inside = set(before)
        for check in checks if loop.select is None else loop.select(item):
            if check.reads_values and not values:
                continue
            event = evaluate(check, item, inside)
            if event.status is not Status.PASSED:
                inside.add(check)
            yield event
        if loop.blocks:
            blocked |= inside


def evaluate(check: type[Check[Any]], subject: Any, blocked: Set[type[Check[Any]]]) -> Event:
    """What one check says of a subject, the `blocked` ones being unmet."""
    if not blocked.isdisjoint(check.premises) or not check.evaluable(subject):
        return Event(check, Status.NOT_REACHED, subject)
    violations = tuple(check.find(subject))
    return Event(check, Status.FAILED if violations else Status.PASSED, subject, violations)


def guard(stages: Stages, call: Call) -> None:
    """Raise the first violation as upstream's exception; of our own checks, those of error severity."""
    for event in walk(stages, call, values=False):
        if event.violations and event.check.severity is Severity.ERROR:
            raise event.violations[0].exception()


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A violation and the subject it was found in."""

    violation: Check[Any]
    subject: Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """One check over the whole call."""

    check: type[Check[Any]]
    status: Status
    occurrences: tuple[Occurrence, ...] = ()


@dataclass(frozen=True)
class Examination:
    """Every check's outcome, upstream's first, and the violation that upstream would raise."""

    outcomes: tuple[Outcome, ...]
    raised: Check[Any] | None

    @property
    def rejected(self) -> bool:
        """Whether upstream raises, or a check of our own of error severity fails."""
        return any(outcome.check.severity is Severity.ERROR for outcome in self._failed)

    def failed(self) -> tuple[Outcome, ...]:
        """The failing checks, in order."""
        return self._failed

    @cached_property
    def _failed(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.status is Status.FAILED)


def examine(stages: Stages, call: Call) -> Examination:
    """Evaluate every check: what `walk` says, without an event for each check that passes."""
    found: dict[type[Check[Any]], list[Occurrence]] = {}
    passed: set[type[Check[Any]]] = set()
    unreached: set[type[Check[Any]]] = set()
    blocked: set[type[Check[Any]]] = set()
    subject: Any = call
    for stage in stages:
        if isinstance(stage, Step):
            if blocked.isdisjoint(stage.premises):
                subject = stage.run(subject)
            continue
        if isinstance(stage, Each):
            for event in _walk_items(stage, subject, blocked, True):
                if event.violations:
                    occurrences = found.setdefault(event.check, [])
                    occurrences += [Occurrence(each, event.subject) for each in event.violations]
                else:
                    (passed if event.status is Status.PASSED else unreached).add(event.check)
            continue
        given = not isinstance(stage, Given) or not blocked or blocked.isdisjoint(stage.premises)
        for check in stage.checks if isinstance(stage, Given) else (stage,):
            met = given and (not blocked or blocked.isdisjoint(check.premises))
            if not met or not check.evaluable(subject):
                unreached.add(check)
                blocked.add(check)
                continue
            violations = tuple(check.find(subject))
            if violations:
                found.setdefault(check, []).extend([Occurrence(each, subject) for each in violations])
                blocked.add(check)
            else:
                passed.add(check)
    outcomes = tuple(
        Outcome(check, Status.FAILED, tuple(found[check]))
        if check in found
        else _quiet(check, check in unreached and check not in passed)  # type: ignore[arg-type]
        for check in _ordered(tuple(stages))
    )
    raised = (
        occurrences[0].violation for check, occurrences in found.items() if check.origin() is Origin.UPSTREAM
    )
    return Examination(outcomes, next(raised, None))


@cache
def _quiet(check: Any, unreached: bool) -> Outcome:
    """An outcome without a violation: the same for every call."""
    return Outcome(check, Status.NOT_REACHED if unreached else Status.PASSED)


@cache
def _ordered(stages: tuple[Any, ...]) -> tuple[type[Check[Any]], ...]:
    """Every check of the stages once, upstream's first."""
    checks = dict.fromkeys(checks_of(stages))
    return tuple(sorted(checks, key=lambda check: check.origin() is Origin.BEYOND))


def checks_of(stages: Stages) -> Iterator[type[Check[Any]]]:
    """Every check of the stages, in order."""
    for stage in stages:
        if isinstance(stage, (Each, Given)):
            yield from stage.checks
        elif not isinstance(stage, Step):
            yield stage


@cache
def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
