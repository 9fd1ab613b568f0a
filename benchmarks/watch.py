"""A watch on a run's processes: peak memory and CPU seconds by role, and what each holds at a moment.

Roles are `driver` (penstock's own process), `java`, `workers` (Spark's Python workers), `capture`; `other` is what
cannot be told, like the shell that starts Java.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import psutil

from penstock.runtime.capture import process as capture_process
from penstock.runtime.spark import worker_daemon

LOOK_SECONDS = 0.25
OTHER = "other"
CAPTURE, WORKERS = capture_process.__name__, worker_daemon.__name__  # as `python -m` names them
SERVERS = {"kafka": "kafka.Kafka", "redis": "redis-server", "nats": "nats-server", "postgres": "postgres"}
FORGET_PEAK = "5"  # what Linux wants to hear in clear_refs
HEAP_AFTER = re.compile(r"Pause .*?(\d+)M->(\d+)M\((\d+)M\)")


@dataclass
class Usage:
    """Of all processes of a role: the highest peak of one of them, the CPU seconds of all."""

    peak_mib: int = 0
    cpu_seconds: float = 0.0
    processes: int = 0


@dataclass
class Held:
    """What the processes of a role hold at a moment, together."""

    rss_mib: float = 0.0
    threads: int = 0
    files: int = 0


def peak_memory(process: int | str = "self") -> int:
    """Of a process since it began, in MiB. Not ru_maxrss, which a process inherits from who started it."""
    status = Path(f"/proc/{process}/status").read_text()
    return next((int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0)


def held(pid: int) -> dict[str, Held]:
    """What a process and all below it hold now, by role."""
    found: dict[str, Held] = {}
    for role, process in _family(pid):
        try:
            one = found.setdefault(role, Held())
            one.rss_mib += process.memory_info().rss / 2**20
            one.threads += process.num_threads()
            one.files += process.num_fds()
        except psutil.Error:
            continue  # it has ended in this moment
    return found


def heap_after_collections(folder: Path) -> list[tuple[float, int]]:
    """What Java's heap held after each collection, as (seconds since Java's start, MiB): from the logs that `pipelines`
    has Java write, of the one that ran longest. The others only started it."""
    logs = [_collections(file) for file in folder.glob("gc-*.log")]
    return max(logs, key=lambda log: log[-1][0] if log else 0.0, default=[])


def _collections(file: Path) -> list[tuple[float, int]]:
    found = []
    for line in file.read_text(errors="replace").splitlines():
        at, pause = re.match(r"\[([\d.]+)s\]", line), HEAP_AFTER.search(line)
        if at is not None and pause is not None:
            found.append((float(at[1]), int(pause[2])))
    return found


def collect_heap(pid: int, folder: Path) -> int | None:
    """Has Java, below this process, collect its whole heap: MiB that are in use then, as its log in the folder says.
    None without `jcmd`."""
    jcmd, java = shutil.which("jcmd"), [process.pid for role, process in _family(pid) if role == "java"]
    if jcmd is None or not java:
        return None
    subprocess.run([jcmd, str(java[0]), "GC.run"], capture_output=True, check=False, timeout=60)
    log = (folder / f"gc-{java[0]}.log").read_text(errors="replace")
    whole = [line for line in log.splitlines() if "Pause Full" in line]
    found = HEAP_AFTER.search(whole[-1]) if whole else None
    return int(found[2]) if found else None


@dataclass
class Watch:
    """Looks at a process and all below it, from now on; `roles` has the sums when it is left."""

    pid: int
    roles: dict[str, Usage] = field(default_factory=dict)
    _seen: dict[int, tuple[str, Usage]] = field(default_factory=dict)
    _before: dict[int, float] = field(default_factory=dict)  # CPU seconds when the watch began
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        for _, process in _family(self.pid):
            try:
                times = process.cpu_times()
                self._before[process.pid] = times.user + times.system
                Path(f"/proc/{process.pid}/clear_refs").write_text(FORGET_PEAK)
            except (psutil.Error, OSError):
                continue  # it has ended in this moment, or the system forgets no peaks
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._look()
        for role, usage in self._seen.values():
            if role == OTHER and usage.cpu_seconds < 0.1:
                continue  # on its way to become something else
            total = self.roles.setdefault(role, Usage())
            total.cpu_seconds = round(total.cpu_seconds + usage.cpu_seconds, 2)
            total.peak_mib = max(total.peak_mib, usage.peak_mib)
            total.processes += 1

    def _run(self) -> None:
        self._look()
        while not self._stopping.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        for role, process in _family(self.pid):
            known, usage = self._seen.get(process.pid, (OTHER, Usage()))
            try:
                times = process.cpu_times()
                usage.peak_mib = max(usage.peak_mib, peak_memory(process.pid))
            except (psutil.Error, OSError):
                continue  # it has ended in this moment
            usage.cpu_seconds = times.user + times.system - self._before.get(process.pid, 0.0)
            # A shell becomes Java; one that ends has no command line any more.
            self._seen[process.pid] = (known if role == OTHER else role, usage)


def busy_seconds() -> dict[str, float]:
    """CPU seconds since their start: of the whole machine (`machine`), and of the servers that a pipeline talks to."""
    cpu = psutil.cpu_times()
    idle = cpu.idle + getattr(cpu, "iowait", 0.0) + getattr(cpu, "steal", 0.0)
    guest = getattr(cpu, "guest", 0.0) + getattr(cpu, "guest_nice", 0.0)  # the system counts them as user and nice too
    found = {"machine": sum(cpu) - idle - guest}
    for process in psutil.process_iter():
        try:
            command, times = " ".join(process.cmdline()), process.cpu_times()
            server = next((name for name, word in SERVERS.items() if word in command), None)
            if server is None or WORKERS in command or CAPTURE in command:
                continue
            ended = times.children_user + times.children_system if server == "postgres" else 0.0  # its backends
            found[server] = found.get(server, 0.0) + times.user + times.system + ended
        except psutil.Error:
            continue  # it has ended in this moment
    return found


def _family(pid: int) -> Iterator[tuple[str, psutil.Process]]:
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in processes:
        try:
            yield _role(process, process.pid == pid), process
        except psutil.Error:
            continue  # it has ended in this moment


def _role(process: psutil.Process, root: bool) -> str:
    command = " ".join(process.cmdline())
    if CAPTURE in command:
        return "capture"
    if "java" in Path(process.name()).name:
        return "java"
    if root:
        return "driver"
    return "workers" if WORKERS in command or "pyspark.daemon" in command else OTHER
