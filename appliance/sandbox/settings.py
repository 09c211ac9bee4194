"""Corral's own Podman: its storage, its settings, its run folder, apart from the user's.

`podman_environment` writes the two settings files and returns the environment that makes the
`podman` command and its service use them. On an ordinary host (cgroup v2, systemd, a full root or a
rootless user) nothing but places is set. Each departure from the stock settings is made only where
the host is seen to need it, and says why in the file it is written to.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import HostError
from appliance.sandbox import seccomp
from appliance.system.files import new_file

CAP_SYS_RESOURCE = 24
LIMITS = frozenset({"cpu", "memory", "pids"})
OLDEST_PODMAN = "4.3"
SUBIDS_REMEDY = "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER; podman system migrate"
REMEDIES = {
    r"subuid|subgid|newuidmap|newgidmap|insufficient UIDs": SUBIDS_REMEDY,
    r"no space left|quota exceeded": "free disk space, or set CORRAL_HOME to a folder with more",
    r"hybrid mode|cgroups? v1": "install runc: crun does not take a host with cgroup v1",
    r"permission denied|operation not permitted": "check who owns CORRAL_HOME, or run as another user",
    r"no such file or directory.*(crun|runc)|(crun|runc).*not found": "install crun or runc",
}
CAP_SYS_ADMIN = 21
AGENT_ID = 1000  # the user inside
# The users of the sandboxes, as the host numbers them: a range that neither /etc/subuid nor systemd hands out.
FIRST_HOST_ID = 0x70000000
NUM_IDS = 65536
# From here on an overlay's lower layers can be shown under other ids; before, whole images would be copied.
IDMAPPED_KERNEL = (5, 19)


@dataclass(frozen=True, slots=True)
class HostTraits:
    """What about this host decides Podman's settings. `controllers`: the cgroup limits that can be set.

    `can_map_ids`: sandboxes get a user namespace as root; `can_mount`: their folders get a real size.
    """

    is_root: bool
    has_cgroup_v2: bool
    has_systemd: bool
    can_raise_limits: bool
    controllers: frozenset[str]
    max_files: int
    max_processes: int
    can_map_ids: bool = False
    can_mount: bool = False

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
            can_map_ids=is_root and _kernel(os.uname().release) >= IDMAPPED_KERNEL,
            can_mount=is_root and bool(effective >> CAP_SYS_ADMIN & 1),
        )

    @classmethod
    def told(cls, facts: Mapping[str, str]) -> HostTraits:
        """Of another machine, by what its own /proc and /sys say (`ssh_host.PROBE`)."""
        is_root, effective = facts["uid"] == "0", int(facts["caps"], 16)
        controllers = LIMITS if is_root else frozenset(facts.get("controllers", "").split())
        return cls(
            is_root=is_root,
            has_cgroup_v2="v2" in facts,
            has_systemd="systemd" in facts,
            can_raise_limits=not is_root or bool(effective >> CAP_SYS_RESOURCE & 1),
            controllers=controllers,
            max_files=_told_limit(facts["files"]),
            max_processes=_told_limit(facts["processes"]),
            can_map_ids=is_root and _kernel(facts["release"]) >= IDMAPPED_KERNEL,
            can_mount=is_root and bool(effective >> CAP_SYS_ADMIN & 1),
        )

    @property
    def has_systemd_cgroups(self) -> bool:
        """Whether Podman leaves its cgroups to systemd."""
        return self.has_cgroup_v2 and self.has_systemd

    @property
    def agent_host_id(self) -> int:
        """The uid and gid on this host of the agent's user: who owns what a sandbox may write."""
        if not self.is_root:
            return os.geteuid()
        return FIRST_HOST_ID + AGENT_ID if self.can_map_ids else AGENT_ID


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

    def beside(self, url: str) -> PodmanPlaces:
        """Places for another Podman service on this machine, which Corral uses and does not keep."""
        run = self.run.with_name(hashlib.sha256(f"{self.run} {url}".encode()).hexdigest()[:12])
        return PodmanPlaces(settings=self.settings, storage=self.storage, run=run)

    @property
    def socket(self) -> Path:
        """The private service's Unix socket."""
        return self.run / "podman.sock"

    def make_run(self) -> Path:
        """The run folder: others see nothing in it, but a sandbox's user must pass through to its proxy."""
        self.run.mkdir(parents=True, exist_ok=True)
        self.run.chmod(0o711)
        return self.run

    def seccomp(self, may_nest: bool = False) -> Path:
        """The sandboxes' system call filter."""
        return self.settings / ("seccomp-nested.json" if may_nest else "seccomp.json")

    @property
    def cgroup(self) -> str:
        """The cgroup under which all sandboxes of this storage lie, so that what is left of one can be found."""
        return f"corral-{self.run.name}"


def proxy_directory(home: Path) -> Path:
    """Where the proxy's socket lies: on the run file system, since the path of a Unix socket must be short."""
    folder = PodmanPlaces.under(home).make_run() / "proxy"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o711)
    return folder


def leave_proxy_directory(home: Path) -> None:
    """Have it gone, and the run folder around it, unless something else lies there: a socket, what Podman keeps."""
    run = PodmanPlaces.under(home).run
    with suppress(OSError):
        (run / "proxy").rmdir()
        run.rmdir()


def sandbox_mode(traits: HostTraits, has_stock_profile: bool) -> tuple[str, list[str]]:
    """(what the sandboxes of this host are, what is weaker in that than elsewhere)."""
    limits = ", ".join(sorted(traits.controllers & LIMITS)) or "none"
    version = "v2" if traits.has_cgroup_v2 else "v1"
    mode = f"{'rootful' if traits.is_root else 'rootless'}, cgroup {version}, limits of {limits}"
    weaker = []
    if missing := sorted(LIMITS - traits.controllers):
        weaker.append(f"no limit of {', '.join(missing)} (a rootless user gets them on cgroup v2 with systemd)")
    if traits.is_root and not traits.can_map_ids:
        weaker.append("no user namespace: the agent's user is one of this host's (needs Linux 5.19)")
    else:
        mode += ", a user namespace each"
    if traits.can_mount:
        mode += ", folders of a fixed size"
    else:
        weaker.append("workspace and HOME have no quota and are looked at every two seconds (only root can mount one)")
    if not has_stock_profile:
        weaker.append("the call filter refuses what is known as harmful, as no stock profile is installed")
    return mode, weaker


def is_too_old(told: str) -> bool:
    """Whether a version that Podman told, in whatever words around it, is older than `OLDEST_PODMAN`."""
    found = re.search(r"(\d+)\.(\d+)", told)
    return found is not None and (int(found[1]), int(found[2])) < tuple(map(int, OLDEST_PODMAN.split(".")))


def has_subids(user: str, file: Path) -> bool:
    """Whether /etc/subuid gives this user ids; a range below 65536 is too small for an image."""
    try:
        lines = [line.split(":") for line in file.read_text().splitlines()]
    except OSError:
        return False
    return any(len(f) == 3 and f[0] in (user, str(os.geteuid())) and int(f[2]) >= NUM_IDS for f in lines)


def machine_key(word: str) -> str:
    """A short word for something of this machine, told apart from the like on any other that shares a Podman host."""
    try:
        own = Path("/etc/machine-id").read_text().strip()
    except OSError:
        own = os.uname().nodename
    return hashlib.sha256(f"{own} {word}".encode()).hexdigest()[:10]


def owner_of(home: Path) -> str:
    """A short word for this record, put on every sandbox so that two records never touch each other's."""
    return machine_key(str(home))


def remedy_of(said: str) -> str:
    """What to do about a Podman that does not start, by its last words."""
    for words, remedy in REMEDIES.items():
        if re.search(words, said, re.I):
            return remedy
    return "run `corral doctor`, or `podman info` by hand"


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
        places.make_run()
        _write(places.settings / "containers.conf", containers_conf(places, traits))
        _write(places.settings / "storage.conf", storage_conf(places))
        for may_nest in (False, True):
            _write(places.seccomp(may_nest), seccomp.profile(may_nest))
    except OSError as error:
        remedy = "check the folder's owner and free space"
        raise HostError(f"cannot write Podman's settings: {error}", remedy) from error
    # would redirect our Podman to the user's, or let a sandbox speak to the systemd that started us
    foreign = ("CONTAINERS_", "CONTAINER_", "STORAGE_", "NOTIFY_SOCKET", "WATCHDOG_")
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
    if traits.can_map_ids:
        containers += [
            "# a key ring each would count against one mapped user, whom the kernel gives 200",
            "keyring = false",
        ]
    if not traits.has_cgroup_v2 and shutil.which("runc"):
        engine += ["# crun refuses a host that mounts cgroup v1 and v2 side by side", 'runtime = "runc"']
    if not traits.has_systemd_cgroups:
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


def _told_limit(word: str) -> int:
    return int(word) if word.isdigit() else 1 << 20


def _kernel(release: str) -> tuple[int, int]:
    major, minor = release.split(".")[:2]
    return int(major), int(re.match(r"\d+", minor)[0])  # type: ignore[index]


def _hard_limit(which: int) -> int:
    """This process's hard limit, a large number where there is none."""
    hard = resource.getrlimit(which)[1]
    return 1 << 20 if hard == resource.RLIM_INFINITY else hard


def _write(path: Path, text: str) -> None:
    """Replace `path` only when its text changes: another Corral process may be reading it."""
    if path.is_file() and path.read_text() == text:
        return
    with new_file(path) as fresh:
        fresh.write_text(text)
