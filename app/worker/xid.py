"""Xids: the numbers under which NVIDIA's driver reports a GPU's errors, from its own events and the host's
log.

The host's log also names the process, so that a run's fault can be told from another program's.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Final

from app.worker.nvml import Nvml, NvmlError

MEANINGS: Final = {
    13: "exception of the graphics engine: an illegal instruction or address of a kernel",
    31: "memory page fault: a kernel read or wrote where nothing is mapped",
    32: "corrupted push buffer",
    43: "a program's kernel was stopped after an error of its own",
    45: "a program's work was removed, as after its end by a signal",
    48: "double-bit ECC error",
    63: "a row of memory is to be replaced",
    64: "a row of memory could not be replaced",
    68: "exception of the video processor",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
}
"""What the ones mean that a run may cause, and those after which a GPU needs its operator."""

HOST_LOGS: Final = ("/dev/kmsg", "/var/log/kern.log", "/var/log/syslog", "/var/log/messages")
KEPT: Final = 256
_LINE: Final = re.compile(
    rb"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{7,16})[^)]{0,40}\): (\d{1,4})(?:, pid='?(\d{1,10}))?"
)

log = logging.getLogger("faultbook.worker")


@dataclass(frozen=True, slots=True)
class Xid:
    """One report; `process` where the host's log names it."""

    number: int
    bus_id: str
    process: int | None = None

    def __str__(self) -> str:
        meaning = MEANINGS.get(self.number)
        who = f", process {self.process}" if self.process is not None else ""
        return f"Xid {self.number}" + (f" ({meaning})" if meaning else "") + f" on {self.bus_id}{who}"


def parse(line: bytes) -> Xid | None:
    """The report in one line of the host's log."""
    found = _LINE.search(line)
    if found is None:
        return None
    address = found[1].decode().lower().partition(".")[0]
    return Xid(int(found[2]), address, int(found[3]) if found[3] else None)


class HostLog:
    """What is appended to one file of the host's log after this was made; OSError where it cannot be read."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self._file, 0, os.SEEK_END)
        self._rest = b""

    def new(self) -> Iterator[Xid]:
        """Reports since the last call."""
        while True:
            try:
                data = os.read(self._file, 65_536)
            except BlockingIOError:
                break  # /dev/kmsg has no more
            except BrokenPipeError:
                continue  # its oldest lines were overwritten before they were read
            if not data:
                break
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        self._rest = self._rest[-4096:]
        yield from filter(None, map(parse, lines))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Watch:
    """Collects Xids in a thread of its own for as long as it is open; none where nothing can be watched."""

    def __init__(self, logs: tuple[str, ...] = HOST_LOGS) -> None:
        self._seen: deque[tuple[float, Xid]] = deque(maxlen=KEPT)
        self._times: Counter[tuple[bool, int]] = Counter()
        self._ended = threading.Event()
        self._reading = threading.Lock()
        self._logs = []
        for path in logs:
            with suppress(OSError):
                self._logs.append(HostLog(path))
        self.sources = ["the host's log"] if self._logs else []
        self._thread: threading.Thread | None = None
        try:
            library = Nvml()
            gpus = library.gpus()
        except NvmlError:
            return
        if gpus:
            self.sources.append("NVML")
            self._thread = threading.Thread(target=self._listen, args=(library,), name="xids", daemon=True)
            self._thread.start()

    def since(self, moment: float) -> list[Xid]:
        """What was reported after `moment` (time.monotonic), each error once; the log's word where it has
        one, since that names the process.
        """
        self._read_logs()
        recent = [found for when, found in self._seen if when >= moment]
        named = {(found.number, found.bus_id) for found in recent if found.process is not None}
        unnamed = [found for found in recent if found.process is None]
        kept = [found for found in unnamed if (found.number, found.bus_id) not in named]
        return list(dict.fromkeys([*(found for found in recent if found.process is not None), *kept]))

    def times(self) -> Mapping[int, int]:
        """How often each Xid was reported since this was made, by whichever source told of it more often:
        two tell of the same error.
        """
        self._read_logs()
        return {
            number: max(self._times[True, number], self._times[False, number])
            for _, number in list(self._times)
        }

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        for source in self._logs:
            source.close()
        self._logs = []

    def _read_logs(self) -> None:
        with self._reading:
            for source in self._logs:
                for found in source.new():
                    self._note(found)

    def _note(self, found: Xid) -> None:
        log.warning("the driver reported %s", found)
        self._seen.append((monotonic(), found))
        self._times[found.process is not None, found.number] += 1

    def _listen(self, library: Nvml) -> None:
        try:
            with library.xids(library.gpus()) as events:
                for event in events:
                    if self._ended.is_set():
                        return
                    if event is not None:
                        self._note(Xid(event[1], event[0]))
        except NvmlError as error:
            self.sources.remove("NVML")
            log.info("the driver's events are not watched: %s", error)
