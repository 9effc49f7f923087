"""Checks, declared once; `kernels.examining` walks them over a call.

A check is a class, a violation is an instance of it, and the instance's printed fields fill the message's
holes in order.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
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


@cache
def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
