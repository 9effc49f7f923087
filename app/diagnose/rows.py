"""Rows of an answer: one for each check, made of what it found, and what was raised first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.diagnose import schemas
from app.diagnose.answers import not_given
from app.worker.messages import Outcome
from catalog.additions import request
from kernels.checking import Check, Origin, Status
from kernels.examining import Examination
from kernels.examining import Outcome as CheckOutcome
from kernels.registry import Operation

MAX_OCCURRENCES = 200
"""Violations of one check that an answer lists; a checkpoint may have one in each of its layers."""

RecordIds = Callable[[Operation, type[Check[Any]]], str | None]


class Rows:
    """Makes rows with the ids of their records; those without a violation are kept."""

    def __init__(self, record_id: RecordIds) -> None:
        self._record_id = record_id
        self._quiet: dict[tuple[str, type[Check[Any]], bool], schemas.CheckModel] = {}

    def raised(
        self, operation: Operation, examination: Examination, outcome: Outcome | None
    ) -> schemas.RaisedModel | None:
        """What upstream's user sees first: from the run where there was one, else from the checks."""
        if outcome is not None and outcome.raised is not None and outcome.raised.check is not None:
            check = operation.check(outcome.raised.check)
            if check is None or check.origin() is Origin.BEYOND:
                return None
            return schemas.RaisedModel(
                error_class=outcome.raised.error_class.rpartition(".")[2],
                message=outcome.raised.message,
                record_id=self._record_id(operation, check),
                at_check=outcome.raised.check,
            )
        if outcome is not None or examination.raised is None:
            return None
        check = type(examination.raised)
        return schemas.RaisedModel(
            error_class=check.raises.__name__,
            message=examination.raised.text,
            record_id=self._record_id(operation, check),
            at_check=check.id(),
        )

    def of(self, operation: Operation, found: CheckOutcome, guessed: frozenset[str]) -> schemas.CheckModel:
        """One check's row; a row without a violation is the same for every call and made once."""
        if found.occurrences:
            return self._row(operation, found, guessed)
        key = (operation.name, found.check, found.status is Status.PASSED)
        row = self._quiet.get(key)
        if row is None:
            row = self._quiet[key] = self._row(operation, found)
        return row

    def _row(
        self, operation: Operation, found: CheckOutcome, guessed: frozenset[str] = frozenset()
    ) -> schemas.CheckModel:
        check = found.check
        shown = found.occurrences[:1]
        blamed = shown[0].violation.blames(shown[0].subject) if shown else check.arguments()
        hint = not_given(blamed, guessed)
        occurrences = [
            schemas.OccurrenceModel(
                message=occurrence.violation.text,
                reason=occurrence.violation.explain(),
                expected=occurrence.violation.describe_expected(occurrence.subject),
                actual=occurrence.violation.describe_actual(occurrence.subject) + hint,
            )
            for occurrence in found.occurrences[:MAX_OCCURRENCES]
        ]
        first = occurrences[0] if occurrences else None
        return schemas.CheckModel(
            id=check.id(),
            status=found.status.value,
            origin=check.origin().value,
            severity=check.severity.value,
            category=check.category,
            message=first.message if first else None,
            reason=first.reason if first else None,
            record_id=self._record_id(operation, check),
            arguments=list(blamed),
            expected=first.expected if first else check.requires,
            actual=first.actual if first else None,
            occurrences=occurrences,
            occurrence_count=len(found.occurrences),
        )

    def described(
        self, operation: Operation, order: int, check: type[Check[Any]]
    ) -> schemas.OperationCheckModel:
        """A check for whoever wants to know what an operation looks at; `order` counts from 1."""
        example = check.example()
        return schemas.OperationCheckModel(
            id=check.id(),
            order=order,
            origin=check.origin().value,
            severity=check.severity.value,
            category=check.category,
            error_class=check.raises.__name__,
            message=check.message,
            reason=check.reason,
            record_id=self._record_id(operation, check),
            example=None if example is None else request(operation, example),
            unreachable=check.unreachable or None,
        )
