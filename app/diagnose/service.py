"""Diagnosis of one call: every check, the run, and fixes that were tried again."""

from __future__ import annotations

import secrets
from asyncio import sleep, timeout
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from time import monotonic
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool

from app.access.quotas import RUNS_OF_ONE, MemoryLedger, Quotas
from app.diagnose import fixes as fix_search
from app.diagnose import schemas
from app.diagnose.advice import advice
from app.diagnose.answers import (
    compilations,
    device,
    disagreement,
    fitted,
    fix,
    run_model,
    storage,
    verdict,
)
from app.diagnose.fixes import Repair
from app.diagnose.identity import identity, interpreter
from app.diagnose.levels import is_buildable, is_elsewhere, level_of
from app.diagnose.passing import Passing
from app.diagnose.recent import Given
from app.diagnose.rows import RecordIds, Rows
from app.errors import Busy, Forbidden, TooManyRequests, Unavailable
from app.settings import Settings, run_allowed
from app.upstream.asking import Upstream, unasked
from app.upstream.comparing import launches_safely
from app.worker.compiling import Compiler, Uncompiled
from app.worker.messages import Environment, Job, Outcome, Worker, written_out
from app.worker.pool import PoolBusy, PoolFull, Runs, WorkerPool
from catalog import current
from catalog.additions import request
from kernels.call import Call
from kernels.examining import Examination, unbroken
from kernels.registry import Operation, operations
from kernels.rendering import reproduction
from kernels.target import Target

VERSION = version("faultbook")

MAX_TRIED = 3
"""Repairs of an answer at level run: each of them was run."""

AGAIN = 0.2
"""Seconds between looks for a place for a repair's run."""

T = TypeVar("T")

Report = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Told of each step of a diagnosis: its kind, and what there is to say of it."""


async def nobody(_kind: str, _data: dict[str, Any]) -> None:
    """Reports that nobody reads."""


@dataclass(frozen=True, slots=True)
class Question:
    """A call to diagnose, and what was assumed to make it complete.

    large   it was read from so much that checking it must not hold up other requests
    worker  who would run it, as far as that is known
    owner   whose key asked it, to whom its runs are charged; empty without one
    """

    operation: Operation
    call: Call
    level: schemas.Level | None
    device: str
    seed: int
    assumed: tuple[str, ...]
    large: bool = False
    worker: Worker | None = None
    owner: str = ""

    @property
    def own_target(self) -> Target | None:
        """The architecture that it would run on; None without a worker, or on a CPU."""
        return None if self.worker is None else self.worker.device.target


@dataclass(frozen=True, slots=True)
class Tried:
    """A repair, and what became of running it, where it was run."""

    repair: Repair
    outcome: Outcome | None = None


class Diagnoser:
    """Answers questions with the checks in this process and runs in the pool's."""

    def __init__(
        self,
        settings: Settings,
        pool: Runs,
        record_id: RecordIds,
        dataset_version: str,
        quotas: Quotas | None = None,
        upstream: Upstream | None = None,
    ) -> None:
        """`quotas` admit each run and count what it took, for its owner; `upstream` is asked beside it."""
        self._settings = settings
        self._upstream = upstream
        self._quotas = quotas or Quotas(MemoryLedger)
        self._pool = pool
        self._compiler = Compiler(settings.run_timeout)
        self._record_id = record_id
        self._dataset_version = dataset_version
        self._rows = Rows(record_id)
        self._passing = Passing()

    async def aimed(self, question: Question) -> Question:
        """The question with who would run it and, where it names no target, with their GPU as its target.

        Which GPU runs it decides what its calls are for, and whether another's may run at all.
        """
        if question.level != "checks" and run_allowed(self._settings):
            await self._pool.introduced()
        worker = self._pool.choose(question.device, question.call.target)
        question = replace(question, worker=worker)
        target = question.own_target
        if question.call.target is not None or target is None:
            return question
        return replace(question, call=question.call.replace(target=target))

    def passed(self, question: Question) -> Given | None:
        """The answer to a question (aimed already) at level checks whose call passes every check; None to any
        other. For one thread alone.
        """
        operation, call = question.operation, question.call
        if question.level != "checks" or question.large or not self._passing.passes(operation, call):
            return None

        def model(assumed: list[str], script: str) -> schemas.DiagnosisModel:
            examination = unbroken(tuple(operation.stages))
            whole = self._answer(question, "checks", examination, None, "", [], [], assumed, None)
            return whole.model_copy(update={"reproduction": script})

        key = (operation.name, question.worker, current.version())
        script = reproduction(operation, call)
        return Given(self._passing.rest(key, model, [*question.assumed], script), operation.name, "passed")

    def circumstances(self) -> tuple[Hashable, ...]:
        """What answers at level checks depend on beside their requests."""
        return (self._pool.exists, tuple(self._pool.workers), current.version())

    def identity(self, question: Question) -> str:
        """What an equal answer would come from: equal for equal calls on equal devices with equal versions;
        empty for a question (aimed already) whose answer says nothing about the next one.
        """
        level, obstacle = level_of(question, self._pool, self._settings, [])
        if level != "run" or obstacle or question.worker is None:
            return ""
        settings = self._settings
        asked = (question.operation.name, question.call, question.device, question.seed, question.assumed)
        limits = (
            settings.allow_faulting_runs,
            settings.run_timeout,
            int(settings.max_tensor_bytes),
            interpreter(settings.upstream_python),
        )
        return identity(asked, question.level, question.worker, self._dataset_version, VERSION, limits)

    async def diagnose(
        self, question: Question, report: Report = nobody, *, obstacle: str = ""
    ) -> schemas.DiagnosisModel:
        """The diagnosis; raises ContentTooLarge or Unavailable where a run was asked for and cannot be
        had. An `obstacle` given is why there is to be no run.
        """
        question = await self.aimed(question)
        operation, call = question.operation, question.call
        aside = run_in_threadpool if question.large else directly
        examine = operation.examine
        if question.level == "checks" and not question.large:
            examine = partial(self._passing.examine, operation)
        examination = await aside(examine, call)
        assumed = list(question.assumed)
        level, found = level_of(question, self._pool, self._settings, assumed)
        given, obstacle = bool(obstacle), obstacle or found
        if level == "run" and not given and self._awaited(question):
            raise Unavailable(f"No run now: {self._pool.absence}.")
        can_run = level == "run" and not obstacle
        await report("checks", {"failed": len(examination.failed()), "rejected": examination.rejected})
        outcome: Outcome | None = None
        held = call
        if can_run:
            if examination.rejected and examination.raised is None and not self._settings.allow_faulting_runs:
                obstacle = "not run: a check of ours fails that upstream does not make"
            else:
                outcome = await self._run(question, call)
                await report("run", {"ending": outcome.ending})
                if outcome.drawn:
                    held = written_out(call, outcome.drawn)
                    examination = await aside(operation.examine, held)
                if outcome.ending == "unsupported":
                    can_run, obstacle, outcome = bool(outcome.drawn), outcome.detail, None
        said = None if given else await self._upstream_says(question, level, examination)
        compiled: list[schemas.CompilationModel] | None = None
        if level == "run" and not given and is_elsewhere(question) and examination.raised is None:
            compiled, obstacle = await self._compiled(question, obstacle)
        repairs = (await aside(fix_search.search, held, examination, examine)).repairs
        told = await aside(advice, held, examination, repairs, examine)
        if held is not call:
            repairs = tuple(repair.of(call, held) for repair in repairs)
        tried = [Tried(repair) for repair in repairs]
        if can_run and (outcome is None or outcome.ending != "timed-out"):
            tried = await self._try(question, repairs, report)
        answer = await aside(
            self._answer, question, level, examination, outcome, obstacle, tried, told, assumed, said
        )
        return answer if compiled is None else answer.model_copy(update={"compilations": compiled})

    async def _compiled(
        self, question: Question, obstacle: str
    ) -> tuple[list[schemas.CompilationModel] | None, str]:
        """What the call's kernels need of the GPU that it is for, which is no worker's, and the obstacle to a
        run with why nothing could be compiled.
        """
        if not WorkerPool.installed() or not run_allowed(self._settings):
            return None, obstacle
        try:
            return compilations(await self._compiler.compiled(question.operation, question.call)), obstacle
        except Uncompiled as error:
            return None, f"{obstacle}; not compiled for it either: {error}"

    async def _upstream_says(
        self, question: Question, level: schemas.Level, examination: Examination
    ) -> schemas.UpstreamModel | None:
        """Upstream's own word at level run, where there is an interpreter to ask; no kernel is launched that
        would write outside its tensors, takes too much memory or is for another GPU.
        """
        if self._upstream is None or level != "run" or not run_allowed(self._settings):
            return None
        runs = (
            (launches_safely(examination) or self._settings.allow_faulting_runs)
            and storage(question.call) <= self._settings.max_tensor_bytes
            and not is_elsewhere(question)
        )
        operation, record_id = question.operation, self._record_id
        try:
            async with self._quotas.beside(question.owner, self._settings.upstream_timeout) as turn:

                def spent(seconds: float) -> None:
                    turn.add(seconds)
                    self._pool.seconds += seconds if runs else 0.0

                return await self._upstream.ask(
                    operation,
                    question.call,
                    question.seed,
                    examination,
                    record_id,
                    runs=runs,
                    spent=spent,
                )
        except (Forbidden, TooManyRequests) as problem:
            # The call itself was the last that its owner may run.
            return unasked(operation, examination, str(problem.detail), record_id)

    async def _try(self, question: Question, repairs: Sequence[Repair], report: Report) -> list[Tried]:
        """Run the repairs one after another, for as long altogether as one run may take, until MAX_TRIED
        hold; a run that would take longer is ended.

        A repair that raises or computes something else is none, whatever the checks say of it.
        """
        deadline = monotonic() + self._settings.run_timeout
        tried: list[Tried] = []
        limit = None  # of the first run, which the pool itself limits
        for repair in repairs:
            if len(tried) == MAX_TRIED:
                break
            outcome = None
            fits = storage(repair.call) <= self._settings.max_tensor_bytes
            if fits and is_buildable(repair.call) and monotonic() < deadline:
                try:
                    async with timeout(limit) as scope:
                        outcome = await self._run_once_free(question, repair.call, deadline)
                except TimeoutError:
                    if not scope.expired():
                        raise
                    tried.append(Tried(repair))
                    continue
                except (Busy, Forbidden, TooManyRequests):
                    deadline = monotonic()  # or the call itself was the last that its owner may run
                    tried.append(Tried(repair))
                    continue
                limit = max(deadline - monotonic(), 0)
                await report(
                    "fix", {"title": repair.title, "ending": outcome.ending, "agrees": outcome.agrees}
                )
            fails = outcome is not None and (outcome.ending in ("raised", "returned") or outcome.drawn)
            if outcome is None or outcome.agrees or not fails:
                tried.append(Tried(repair, outcome))
        return tried

    async def _run_once_free(self, question: Question, call: Call, deadline: float) -> Outcome:
        """A run, as soon as there is a place for it: what was run before is not to be run again for want of
        one. Busy where there is none until then.
        """
        while True:
            try:
                return await self._run(question, call)
            except Busy:
                if monotonic() >= deadline:
                    raise
            await sleep(AGAIN)

    def _awaited(self, question: Question) -> bool:
        """Whether the run is for whichever worker joins first: one for a stated GPU may never find it."""
        return (
            self._pool.joins
            and not self._pool.exists
            and not question.operation.needs
            and question.call.target is None
            and run_allowed(self._settings)
        )

    async def _run(self, question: Question, call: Call) -> Outcome:
        try:
            faulting = self._settings.allow_faulting_runs
            job = Job(question.operation.name, call, question.seed, faulting)
            places = RUNS_OF_ONE * self._pool.places
            async with self._quotas.run(question.owner, places) as turn:
                return await self._pool.run(job, question.worker, turn.add)
        except PoolFull as error:
            raise Busy(f"No run now: {error}.") from None
        except PoolBusy as error:
            raise Unavailable(f"No run now: {error}.") from None

    def _answer(
        self,
        question: Question,
        level: schemas.Level,
        examination: Examination,
        outcome: Outcome | None,
        obstacle: str,
        tried: list[Tried],
        told: list[str],
        assumed: list[str],
        said: schemas.UpstreamModel | None,
    ) -> schemas.DiagnosisModel:
        operation = question.operation
        guessed = fitted(question.assumed) if examination.failed() else frozenset()
        worker = question.worker
        environment = worker.environment if worker else Environment()
        if outcome and outcome.environment.torch:
            environment = outcome.environment  # of several hosts of one architecture, the one that ran it
        if outcome and outcome.device and outcome.device.emulated:
            assumed.append(f"the run emulates the caller's device on {outcome.device.name}")
        return schemas.DiagnosisModel(
            id=secrets.token_hex(16),
            operation=operation.name,
            level=level,
            verdict=verdict(level, examination, outcome, obstacle),
            raised=self._rows.raised(operation, examination, outcome),
            checks=[self._rows.of(operation, found, guessed) for found in examination.outcomes],
            fixes=[fix(operation, question.call, found.repair, found.outcome) for found in tried],
            advice=told,
            run=run_model(outcome),
            disagreement=disagreement(examination, outcome),
            detail=obstacle or (outcome.detail if outcome else "") or None,
            upstream=said,
            assumed=assumed,
            reproduction=reproduction(operation, question.call),
            environment=schemas.EnvironmentModel(
                torch=environment.torch,
                triton=environment.triton,
                cuda=environment.cuda,
                driver=environment.driver,
                faultbook=VERSION,
            ),
            dataset_version=current.version(),
        )

    def describe(self, operation: Operation, call_schema: dict[str, Any]) -> schemas.OperationModel:
        """An operation for whoever wants to diagnose a call of it."""
        return schemas.OperationModel(
            name=operation.name,
            title=operation.title,
            summary=operation.summary,
            call_schema=call_schema,
            valid=request(operation, operation.valid),
            checks=[
                self._rows.described(operation, order, check)
                for order, check in enumerate(operation.checks, start=1)
            ],
            devices=[device(worker.device) for worker in self._pool.workers],
        )


def summaries(address: Callable[[str], str]) -> list[schemas.OperationSummary]:
    """Every operation in one line; `address` makes a path one to hand out."""
    return [
        schemas.OperationSummary(
            name=operation.name,
            title=operation.title,
            summary=operation.summary,
            checks=len(operation.checks),
            url=address(f"/api/operations/{operation.name}"),
        )
        for operation in operations().values()
    ]


async def directly(function: Callable[..., T], *arguments: Any) -> T:
    """In place of a thread: most calls are checked in less time than it takes to hand them over."""
    return function(*arguments)
