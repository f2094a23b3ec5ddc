"""An engine's HTTP server as a process: started, asked over the loopback, watched, ended."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from fretsaw.errors import RunError
from fretsaw.serving.engines.base import Prompt, Timing

HOST = "127.0.0.1"
START_LIMIT_S = 1800.0
STOP_LIMIT_S = 20.0
REQUEST_LIMIT_S = 3600.0
LOG_LINES = 12
HTTP_OK = 200
DONE = "[DONE]"


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        name: Of the engine.
        process: Leader of a process group of its own.
        port: On the loopback address.
        log: What it has printed.
    """

    name: str
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """One request as JSON, its whole answer.

        Raises:
            RunError: the server refuses it, or has died.
        """
        answer: dict[str, Any] = json.loads(b"".join(self._lines(path, body)))
        return answer

    def read(self, path: str) -> str:
        """What a GET gives."""
        return b"".join(self._lines(path, None)).decode()

    def time(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        num_tokens: Callable[[Mapping[str, Any]], int],
    ) -> Timing:
        """One streamed request; only its last event is parsed, so that watching costs little.

        Args:
            path: Of the endpoint.
            body: Request.
            num_tokens: Tokens of the answer, from its last event.

        Raises:
            RunError: the server refuses it, or has died.
        """
        sent = time.perf_counter()
        first = last = 0.0
        event = "{}"
        for line in self._lines(path, body):
            if line.startswith(b"data: ") and DONE not in (data := line[6:].decode()):
                last = time.perf_counter()
                first = first or last
                event = data
        return Timing(num_tokens(json.loads(event)), sent, first, last)

    def is_ready(self) -> bool:
        """Whether it answers requests."""
        try:
            self.read("/health")
        except (OSError, RunError):
            return False
        return True

    def _lines(self, path: str, body: Mapping[str, Any] | None) -> Iterator[bytes]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=REQUEST_LIMIT_S)
        try:
            method = "GET" if body is None else "POST"
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != HTTP_OK:
                detail = response.read(500).decode(errors="replace")
                raise RunError(f"{self.name} answers {response.status}: {detail}", self._hint())
            yield from response
        except (http.client.HTTPException, ConnectionError) as error:
            if self.process.poll() is None:
                raise
            raise RunError(f"{self.name} has died\n{tail(self.log)}", self._hint()) from error
        finally:
            connection.close()

    def _hint(self) -> str:
        return f"its output is in {self.log}"


@contextmanager
def serve(
    name: str, runner: str, *, python: Path, log: Path, arguments: Callable[[int], Sequence[str]]
) -> Iterator[Server]:
    """Start a runner (`fretsaw/data/engine_runners`) and wait until its server answers.

    Args:
        name: Of the engine.
        runner: File name of the runner.
        python: That runs it, isolated from the user's site packages and ``PYTHONPATH``.
        log: Receives its output.
        arguments: Port -> arguments.

    Raises:
        RunError: it ended before it answered.
    """
    port = free_port()
    source = files("fretsaw") / "data" / "engine_runners" / runner
    with as_file(source) as script, log.open("wb") as output:
        process = subprocess.Popen(
            [python, "-I", script, *arguments(port)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            server = Server(name, process, port, log)
            _await(server)
            yield server
        finally:
            _end(process)


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def tail(log: Path) -> str:
    """Last lines of a log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-LOG_LINES:])


def _await(server: Server) -> None:
    limit = time.monotonic() + START_LIMIT_S
    while not server.is_ready():
        if server.process.poll() is not None:
            raise RunError(
                f"{server.name} ended while it loaded the checkpoint:\n{tail(server.log)}",
                "see whether this engine takes the checkpoint, in the table beside it",
            )
        if time.monotonic() > limit:
            raise RunError(
                f"{server.name} has not answered within {START_LIMIT_S:.0f} s",
                f"its output is in {server.log}",
            )
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the whole group, workers included."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_LIMIT_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    if process.stdin:
        process.stdin.close()


def closed_loop(
    prompts: Sequence[Prompt], *, concurrency: int, do: Callable[[Prompt], Timing]
) -> tuple[Timing, ...]:
    """Ask all prompts, at most `concurrency` at a time, the next as soon as one is done.

    An error, or the user's interruption, does not wait for the requests that are still running.
    """
    pool = ThreadPoolExecutor(concurrency)
    try:
        return tuple(pool.map(do, prompts))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def group_peak_bytes(leader: int) -> int | None:
    """Largest resident memory of each process of a group, summed; None off Linux.

    Pages that processes share are counted once for each.
    """
    total = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if os.getpgid(int(status.parent.name)) == leader:
                total += _peak_kib(status.read_text(encoding="utf-8")) * 1024
        except OSError:  # ended meanwhile
            continue
    return total or None


def _peak_kib(status: str) -> int:
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0")
    return int(line.split()[1])
