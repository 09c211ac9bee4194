"""Corral's own Podman: its storage, its settings, its run folder, apart from the user's.

`podman_environment` writes the two settings files and returns the environment that makes the
`podman` command and its service use them. On an ordinary host (cgroup v2, systemd, a full root or a
rootless user) nothing but places is set. Each departure from the stock settings is made only where
the host is seen to need it, and says why in the file it is written to.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import HostError

CAP_SYS_RESOURCE = 24
# The system calls a sandbox loses on top of the stock profile: new namespaces, mounts, keys, kernel probes.
DENIED_CALLS = (
    "unshare", "setns", "mount", "umount", "umount2", "mount_setattr", "move_mount", "fsopen", "fsconfig",
    "fsmount", "fspick", "open_tree", "pivot_root", "keyctl", "add_key", "request_key", "bpf", "userfaultfd",
    "perf_event_open", "io_uring_setup", "io_uring_enter", "io_uring_register", "ptrace",
    "process_vm_readv", "process_vm_writev",
)  # fmt: skip
CLONE_NEW_FLAGS = 0x7E020000  # NEWNS|NEWCGROUP|NEWUTS|NEWIPC|NEWUSER|NEWPID|NEWNET
ENOSYS = 38
EPERM = 1


@dataclass(frozen=True, slots=True)
class HostTraits:
    """What about this host decides Podman's settings. `controllers`: the cgroup limits that can be set."""

    is_root: bool
    has_cgroup_v2: bool
    has_systemd: bool
    can_raise_limits: bool
    controllers: frozenset[str]
    max_files: int
    max_processes: int

    @classmethod
    def read(cls) -> HostTraits:
        """Look at /proc, /sys and this process's own limits."""
        effective = 0
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                effective = int(line.split()[1], 16)
        is_root = os.geteuid() == 0
        return cls(
            is_root=is_root,
            has_cgroup_v2=Path("/sys/fs/cgroup/cgroup.controllers").exists(),
            has_systemd=Path("/run/systemd/system").is_dir(),
            can_raise_limits=not is_root or bool(effective >> CAP_SYS_RESOURCE & 1),
            controllers=_controllers(is_root),
            max_files=_hard_limit(resource.RLIMIT_NOFILE),
            max_processes=_hard_limit(resource.RLIMIT_NPROC),
        )


@dataclass(frozen=True, slots=True)
class PodmanPlaces:
    """Where Corral's Podman keeps its things."""

    settings: Path
    storage: Path
    run: Path

    @classmethod
    def under(cls, home: Path) -> PodmanPlaces:
        """Places for the Corral whose state folder is `home`.

        The run folder lies on the system's run file system: emptied at boot, so that Podman sees
        that the machine restarted, and short, as a Unix socket's path must be.
        """
        home = home.resolve()
        key = hashlib.sha256(str(home).encode()).hexdigest()[:12]
        if os.geteuid() == 0:
            run = Path("/run/corral") / key
        else:
            user_run = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}")
            run = (user_run if user_run.is_dir() else Path(f"/tmp/corral-{os.geteuid()}")) / "corral" / key
        return cls(settings=home / "podman", storage=home / "podman" / "storage", run=run)

    @property
    def socket(self) -> Path:
        """The private service's Unix socket."""
        return self.run / "podman.sock"

    @property
    def seccomp(self) -> Path:
        """The sandboxes' system call filter."""
        return self.settings / "seccomp.json"


def podman_environment(home: Path) -> dict[str, str]:
    """Write Corral's Podman settings under `home` and return the environment that uses them.

    Raises HostError where Podman is missing or a folder cannot be written.
    """
    if shutil.which("podman") is None:
        remedy = "install it with the system's package manager, or run ./install.sh"
        raise HostError("podman is not installed", remedy)
    places = PodmanPlaces.under(home)
    traits = HostTraits.read()
    try:
        places.storage.mkdir(parents=True, exist_ok=True)
        places.run.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(places.settings / "containers.conf", containers_conf(places, traits))
        _write(places.settings / "storage.conf", storage_conf(places))
        _write(places.seccomp, seccomp_profile())
    except OSError as error:
        remedy = "check the folder's owner and free space"
        raise HostError(f"cannot write Podman's settings: {error}", remedy) from error
    foreign = ("CONTAINERS_", "CONTAINER_", "STORAGE_")  # would redirect our Podman to the user's
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return kept | {
        "CONTAINERS_CONF": str(places.settings / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(places.settings / "storage.conf"),
    }


def containers_conf(places: PodmanPlaces, traits: HostTraits) -> str:
    """The text of containers.conf for a host with these traits."""
    containers: list[str] = []
    # The stock shared-memory locks are one pool a user: a second storage would take the user's own locks.
    engine = [f'tmp_dir = "{places.run}/libpod"', 'lock_type = "file"']
    if not traits.can_raise_limits:
        files, processes = min(traits.max_files, 16384), min(traits.max_processes, 32768)
        containers += [
            "# root without CAP_SYS_RESOURCE cannot set Podman's stock limits",
            f'default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]',
        ]
    if not traits.has_cgroup_v2 and shutil.which("runc"):
        engine += ["# crun refuses a host that mounts cgroup v1 and v2 side by side", 'runtime = "runc"']
    if not traits.has_cgroup_v2 or not traits.has_systemd:
        engine += ["# there is no systemd here that could make cgroups", 'cgroup_manager = "cgroupfs"']
    if not traits.has_systemd:
        engine += ["# there is no journal here", 'events_logger = "file"']
    parts = ["# Written by Corral at each start; changes are lost.", "[containers]", *containers, "[engine]", *engine]
    return "\n".join(parts) + "\n"


def storage_conf(places: PodmanPlaces) -> str:
    """The text of storage.conf: native overlay under the state folder."""
    return (
        "# Written by Corral at each start; changes are lost.\n[storage]\n"
        f'driver = "overlay"\ngraphroot = "{places.storage}"\nrunroot = "{places.run}/containers"\n'
    )


def seccomp_profile() -> str:
    """The stock system call filter without `DENIED_CALLS` and without new namespaces, as JSON text.

    Returns an empty text where the distribution ships no profile; Podman's built-in one then applies.
    """
    for stock in (Path("/etc/containers/seccomp.json"), Path("/usr/share/containers/seccomp.json")):
        if stock.is_file():
            break
    else:
        return ""
    profile = json.loads(stock.read_text())
    denied = {*DENIED_CALLS, "clone", "clone3"}
    rules = []
    for rule in profile["syscalls"]:
        names = [name for name in rule["names"] if name not in denied]
        if names:
            rules.append(rule | {"names": names})
    no_namespaces = {"index": 0, "value": CLONE_NEW_FLAGS, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    rules += [
        {"names": list(DENIED_CALLS), "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM},
        {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [no_namespaces]},
        # clone3's flags lie in memory, out of the filter's sight; ENOSYS makes libc use clone.
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS},
    ]
    return json.dumps(profile | {"syscalls": rules}, indent=1) + "\n"


def _controllers(is_root: bool) -> frozenset[str]:
    """Root has all; a user has what systemd delegates to the user's own service, nothing on cgroup v1."""
    if is_root:
        return frozenset({"cpu", "memory", "pids"})
    user = os.geteuid()
    delegated = Path(f"/sys/fs/cgroup/user.slice/user-{user}.slice/user@{user}.service/cgroup.controllers")
    try:
        return frozenset(delegated.read_text().split())
    except OSError:
        return frozenset()


def _hard_limit(which: int) -> int:
    """This process's hard limit, a large number where there is none."""
    hard = resource.getrlimit(which)[1]
    return 1 << 20 if hard == resource.RLIM_INFINITY else hard


def _write(path: Path, text: str) -> None:
    """Replace `path` only when its text changes: another Corral process may be reading it."""
    if path.is_file() and path.read_text() == text:
        return
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(path)
