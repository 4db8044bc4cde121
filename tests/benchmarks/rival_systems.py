"""The rivals, each started as its own documentation recommends for one model instance on one machine.

The same for all: two processes (or threads) for HTTP where the system allows a choice, one model instance,
batches of up to 64, access logs off, keep-alive on. Differences are noted at each system.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import ClassVar

from tests.benchmarks.shapes import input_output, kserve_v2, list_of_one
from tests.benchmarks.system import Model, OnRedis, Rival
from tests.benchmarks.venvs import RIVALS

# Enough for every request that waits behind a slow model at 256 connections.
_TIMEOUT_MS = "60000"


class FlaskCelery(OnRedis):
    """Flask + plain Celery under gunicorn's gevent worker: no batching."""

    name = "flask_celery"
    shape = input_output("/infer")
    batches = False
    # gunicorn would wait for callers that a crowd has left behind.
    stop_grace_s = 2.0

    # The usual pool of a plain worker with one model: nothing between the consumer and the task.
    worker_options: ClassVar[tuple[str, ...]] = ("--pool=solo",)

    def launch(self, model: Model) -> None:
        env = self.env(model)
        self.run(
            "worker",
            *(self.python, "-m", "celery", "--app=app:celery", "worker", *self.worker_options),
            *("--concurrency=1", "--loglevel=ERROR", "--without-gossip", "--without-mingle"),
            env=env,
        )
        self.run(
            "web",
            *(self.python, "-m", "gunicorn", "app:web", f"--bind=127.0.0.1:{self.port}", "--workers=2"),
            *("--worker-class=gevent", "--worker-connections=1000", "--timeout=60", "--keep-alive=75"),
            *("--log-level=warning", f"--worker-tmp-dir={self.folder}"),
            env=env,
        )


class CeleryBatches(FlaskCelery):
    """celery-batches behind the same Flask."""

    name = "celery_batches"
    batches = True
    # A separate process for the model, so that the consumer can collect the next batch during the computation.
    worker_options = ("--pool=prefork",)


class LitServe(Rival):
    """LitServe as its first pages show it: one inference worker, and as many API servers as workers."""

    name = "litserve"
    shape = input_output("/predict")

    def launch(self, model: Model) -> None:
        self.run("server", self.python, str(self.source / "server.py"), env=self.env(model))


class TunedLitServe(LitServe):
    """LitServe as its page on speed advises: a second API server, and the fast queue."""

    name = "litserve_tuned"
    home = "litserve"

    def env(self, model: Model) -> dict[str, str]:
        return super().env(model) | {"BENCH_TUNED": "1"}


class BentoML(Rival):
    """BentoML: one service with an adaptive batcher."""

    name = "bentoml"
    shape = list_of_one("/infer")

    def launch(self, model: Model) -> None:
        env = self.env(model) | {"BENTOML_HOME": str(self.folder / "home"), "BENTOML_DO_NOT_TRACK": "True"}
        self.run(
            "server",
            *(self.python, "-m", "bentoml", "serve", "service:Inference", "--working-dir", str(self.source)),
            *("--host", "127.0.0.1", "--port", str(self.port), "--quiet"),
            env=env,
        )


class RayServe(Rival):
    """Ray Serve: one HTTP proxy, one replica with `@serve.batch`."""

    name = "ray_serve"
    shape = input_output("/")
    start_limit_s = 180.0

    def launch(self, model: Model) -> None:
        env = self.env(model) | {"RAY_USAGE_STATS_ENABLED": "0"}
        self.run("server", self.python, str(self.source / "server.py"), env=env)


class Mosec(Rival):
    """mosec: HTTP threads in Rust (one per core, its own choice), one worker process."""

    name = "mosec"
    shape = input_output("/inference")
    # It takes more than ten seconds, as Triton does, and keeps nothing.
    stop_grace_s = 1.0

    def launch(self, model: Model) -> None:
        self.run(
            "server",
            *(
                self.python,
                str(self.source / "server.py"),
                "--address",
                "127.0.0.1",
                "--port",
                str(self.port),
            ),
            # The default is 3 s per request; 256 simultaneous requests to the 50 ms model must not reach it.
            *("--timeout", _TIMEOUT_MS, "--log-level", "warning"),
            env=self.env(model),
        )


class Triton(Rival):
    """NVIDIA Triton, the binary inside nvidia-pytriton, with a model repository and its Python backend."""

    name = "triton"
    shape = kserve_v2("/v2/models/stand_in/infer")
    stop_grace_s = 1.0

    def launch(self, model: Model) -> None:
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(Path(self.python).parents[1])}))
        triton = packages / "pytriton" / "tritonserver"
        # libcudart and others that the wheel contains; libpython is where the build of this interpreter put it.
        libraries = [str(packages / "nvidia_pytriton.libs"), sysconfig.get_config_var("LIBDIR") or ""]
        self.run(
            "server",
            *(str(triton / "bin" / "tritonserver"), f"--model-repository={self._repository()}"),
            *(f"--backend-directory={self._backends(triton)}", "--http-address=127.0.0.1"),
            *(
                f"--http-port={self.port}",
                "--http-thread-count=2",
                "--allow-grpc=false",
                "--allow-metrics=false",
            ),
            *("--pinned-memory-pool-byte-size=0", "--log-info=false"),
            env=self.env(model) | {"LD_LIBRARY_PATH": os.pathsep.join(libraries)},
        )

    def _repository(self) -> Path:
        """The model repository with the stand-in beside the model: the stub's Python ignores PYTHONPATH.

        (It takes its packages from the virtual environment of the first `python3` on PATH.)
        """
        folder = self.folder / "repository"
        shutil.copytree(self.source / "repository", folder)
        shutil.copy2(RIVALS / "stand_in.py", folder / "stand_in" / "1")
        return folder

    def _backends(self, triton: Path) -> Path:
        """A backend folder with the stub of this Python beside the backend, where Triton looks for it."""
        folder = self.folder / "backends"
        shutil.copytree(triton / "backends", folder)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = shutil.copy2(triton / "python_backend_stubs" / version / "triton_python_backend_stub", folder / "python")
        Path(stub).chmod(0o755)
        return folder
