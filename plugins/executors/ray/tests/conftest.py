"""One Ray cluster for all tests of this folder, and runs in it whose processes are killed."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from composer_core.traces import decode
from composer_core.tracking import read_events

ROOT = Path(__file__).resolve().parents[4]
FAKES = ROOT / "examples/fakes/run.toml"
LIBC, PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
PLUGINS = ("mishaps", "chatty")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# As where a cluster is shared: who has an address alone is not let in.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """A folder for PYTHONPATH in which the plugins of this folder are installed."""
    folder = tmp_path_factory.mktemp("site")
    for name in PLUGINS:
        (folder / f"ray_{name}.py").write_text(Path(__file__).with_name(f"{name}.py").read_text())
        info = folder / f"composer_plugin_{name}-0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: composer-plugin-{name}\nVersion: 0.1\n")
        (info / "entry_points.txt").write_text(f"[composer.plugins]\n{name} = ray_{name}\n")
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


@pytest.fixture(scope="session")
def cluster(site):
    """Its address, of a cluster that others have started; executors of this process find the connection to it."""
    import ray

    with Head(site) as address:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
        yield address
        ray.shutdown()


class Started:
    """`ray start ...` in a process of its own, which ends with this one; what it has started ends with it."""

    def __init__(self, site, *options):
        self._process = subprocess.Popen(
            [Path(sys.executable).with_name("ray"), "start", "--num-cpus=64", "--block", *options],
            env={**os.environ, "PYTHONPATH": site},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 - no thread takes part
        )

    def close(self):
        """Safe twice."""
        if self._process.poll() is not None:
            return
        mine = [self._process.pid, *self._children()]
        os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a head waits for its monitor, which listens to nobody
            self._process.wait(3)
        for pid in mine:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _children(self):
        return [int(pid) for pid in filter(str.isdigit, os.listdir("/proc")) if parent_of(pid) == self._process.pid]


class Head(Started):
    """A cluster's first machine, on loopback; its address is HOST:PORT, as people write it."""

    def __init__(self, site):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._folder = tempfile.mkdtemp(prefix="rt-", dir="/tmp")  # sockets lie below it: their paths must be short
        options = [f"--port={self._address.rpartition(':')[2]}", "--node-ip-address=127.0.0.1"]
        options += ["--include-dashboard=false", f"--object-store-memory={150 << 20}", f"--temp-dir={self._folder}"]
        super().__init__(site, "--head", *options)

    def __enter__(self):
        host, port = self._address.split(":")
        for _ in range(1800):
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                return self._address
            time.sleep(0.1)
        self.close()
        raise AssertionError("the cluster did not start")

    def __exit__(self, *error):
        self.close()

    def close(self):
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Node(Started):
    """A second machine of the cluster, as far as Ray can tell."""

    def __init__(self, address, site):
        super().__init__(site, f"--address={address}")
        self.id = self._joined()

    def _joined(self):
        import ray

        known = {node["NodeID"] for node in ray.nodes()}
        for _ in range(1800):
            if new := [node["NodeID"] for node in ray.nodes() if node["NodeID"] not in known and node["Alive"]]:
                return new[0]
            time.sleep(0.1)
        self.close()
        raise AssertionError("the second node did not join")

    def holds(self, pid):
        return parent_of(pid) == self._raylet()

    def kill(self):
        """Its raylet, by SIGKILL."""
        os.kill(self._raylet(), signal.SIGKILL)

    def _raylet(self):
        (found,) = (p for p in self._children() if read(f"/proc/{p}/cmdline").split(b"\0")[0].endswith(b"/raylet"))
        return found


def parent_of(pid):
    words = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(words[1]) if words else None


def read(path):
    try:
        return Path(path).read_bytes()
    except OSError:  # it has ended
        return b""


class Run:
    """`composer-run train` of the fakes in a process of its own, in deterministic mode."""

    BASE = (
        "sampler.turn_s=0.02",
        "sampler.looks=3",
        "trainer.step_s=0.05",
        'stages=[{name="rl",kind="rl",steps=6,groups_per_step=3,group_size=4}]',
        'evaluations=[{name="main",split="held_out",tasks=6,attempts=1,when=["after"]}]',
        "samplers={}",
    )

    def __init__(self, folder, site, *sets, plugins="ray,mishaps"):
        self.folder, self.plugins, self.site = Path(folder), plugins, site
        self.sets = [part for text in (*self.BASE, *sets) for part in ("--set", text)]
        self.process = None

    def start(self, *command, prefix=()):
        command = command or ("train", str(FAKES), "--run-dir", str(self.folder), *self.sets)
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "composer_core.cli", "--plugins", self.plugins, *map(str, command)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": self.site},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self

    def resume(self):
        return self.start("train", "--resume", self.folder)

    def until(self, seen, timeout_s=180.0):
        """What `seen` finds, asked every few milliseconds while the run goes on."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if found := seen():
                return found
            assert self.process.poll() is None, f"ended too early: {self.process.communicate()[1]}"
            time.sleep(0.01)
        self.stop()
        raise AssertionError("what the test waits for never came")

    def pid_of(self, name, step=2):
        """The id of a process of the run, by the beginning of its name, once the rl stage has made `step` steps."""

        def seen():
            status = self.status()
            return status and status["step"] >= step and [v for k, v in self.processes().items() if k.startswith(name)]

        return self.until(seen)[0]

    def processes(self):
        """worker/worker-0.1 and so on -> process id."""
        return {name: int(pid) for name, pid in self.figures("", "/pid").items() if pid}

    def kill(self, name, step=2, busy=False):
        """SIGKILL; to be `busy`, it must have episodes of the run in it.

        It is stopped first, so that what comes to it stays there: between two steps nothing is under way. One that is
        stopped while it loads weights goes on and is stopped again.
        """
        pid = self.pid_of(name, step)
        while busy and not self._held(pid):
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.07)
        os.kill(pid, signal.SIGKILL)
        return pid

    def _held(self, pid):
        """Stop it; whether there are episodes in it."""
        os.kill(pid, signal.SIGSTOP)
        stopped = time.time()
        place = next(process for process, id in self.processes().items() if id == pid)
        self.until(lambda: (self.status() or {"time_s": 0})["time_s"] > stopped + 1.0)
        return any(self.figures(place, "/episodes").values())

    def figures(self, sort, figure):
        """Of the processes whose names begin so, as the run told last."""
        told = (self.status() or {}).get("executor", {})
        rows = {name: value for name, value in told.items() if name.startswith(sort) and name.endswith(figure)}
        return {name.removesuffix(figure): value for name, value in rows.items()}

    def status(self):
        try:
            return json.loads((self.folder / "status.json").read_text())
        except (OSError, ValueError):
            return None

    def end(self, timeout_s=120):
        """Exit code and standard error."""
        try:
            _, said = self.process.communicate(timeout=timeout_s)
            return self.process.returncode, said
        finally:
            self.stop()

    def stop(self):
        """Whatever it does, it does no more."""
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process and not self.process.stderr.closed:
            self.process.communicate()

    def finish(self, timeout_s=120):
        code, said = self.end(timeout_s)
        assert code == 0, said
        return self

    # --- what it left behind ---

    def weights(self):
        return json.loads((self.folder / "commit.json").read_text())["weights"]["checksum"]

    def ledger(self):
        return json.loads((self.folder / "commit.json").read_text())["ledger"]

    def events(self, kind):
        return [event for event in read_events(self.folder) if event["event"] == kind]

    def voids(self):
        """Of episodes, by cause."""
        verdicts = [event["result"]["verdict"] for event in self.events("EpisodeEnded")]
        return Counter(one["cause"] for one in verdicts if one["outcome"] == "void")

    def trained(self):
        """For each rl step in the lineage of the final weights, its (task, length of each member)."""
        steps, groups = {}, []
        for event in read_events(self.folder):
            if event["event"] == "GroupScored":
                groups.append((event["task_id"], sorted(map(self._tokens, event["episodes"]))))
            elif event["event"] == "StepEnded" and event["stage"] == "rl":
                steps[event["step"]], groups = groups, []  # a step that was repeated counts as it was last made
            elif event["event"] == "RunStarted":
                groups = []
        return steps

    def _tokens(self, episode):
        return decode((self.folder / "traces" / f"{episode}.trace").read_bytes()).sampled_tokens()


@contextlib.contextmanager
def runs(cluster, site, folder):
    """Makes runs in the shared cluster, of one process of each sort; what still goes on is killed."""
    made = []

    def make(*sets, name="run", **more):
        placed = ("executor.use=ray/ray", f"executor.address={cluster}", "executor.workers=1")
        made.append(Run(folder / name, site, *placed, *sets, **more))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def run(cluster, site, tmp_path):
    with runs(cluster, site, tmp_path) as make:
        yield make


@pytest.fixture(scope="module")
def shared_run(cluster, site, tmp_path_factory):
    """Makes runs that several tests of a file look at."""
    with runs(cluster, site, tmp_path_factory.mktemp("shared")) as make:
        yield make


@pytest.fixture
def own_run(site):
    """Makes a run that starts a cluster of its own."""
    made = []

    def make(folder, *sets):
        made.append(Run(folder / "run", site, "executor.use=ray/ray", *sets))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def second_node(cluster, site):
    node = Node(cluster, site)
    yield node
    node.close()


@pytest.fixture(scope="session")
def undisturbed(site, tmp_path_factory):
    """The same run in one process, to its end."""
    return Run(tmp_path_factory.mktemp("undisturbed") / "run", site).start().finish()
