"""What a sandbox is told to Podman as: the request to create it. Everything it must not have is said here; pure.

A *cold* sandbox is made for one command. A *waiting* one is made before its command is known: it starts its
forwarder and then reads a pipe that only the host can write (`launch_script` is what comes through it).
"""

from __future__ import annotations

import math
import os
import resource
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from appliance.sandbox.settings import AGENT_ID, FIRST_HOST_ID, NUM_IDS, HostTraits, PodmanPlaces

PROXY_PORT = 8123
PROXY_FOLDER = "/run/corral"
PROXY_SOCKET = "proxy.sock"
LAUNCH_FOLDER = "/run/corral-launch"
LAUNCH_PIPE = "go"
LOG_BYTES = 1 << 20
# Podman itself ends a container this long after its time limit, should nobody be left to do it.
DEAD_MAN_GRACE_S = 60
OWNER_LABEL = "corral.sandbox"  # not a label of the images, which their containers inherit
MAKER_LABEL = "corral.pid"  # pid and start time of the process that made it
FOLDER_LABEL = "corral.folder"  # the host folder of its rollout
# Starts the forwarder and waits until it listens (the kernel's own table, port in hex).
FORWARDER = (
    f"socat TCP4-LISTEN:{PROXY_PORT},bind=127.0.0.1,fork,reuseaddr,backlog=64 "
    f"UNIX-CONNECT:{PROXY_FOLDER}/{PROXY_SOCKET} </dev/null & "
    f"until grep -q ':{PROXY_PORT:04X} ' /proc/net/tcp; do sleep 0.01; done; "
)
FORWARD = FORWARDER + 'exec "$@"'
WAIT = f". {LAUNCH_FOLDER}/{LAUNCH_PIPE}"


@dataclass(frozen=True, slots=True)
class Mount:
    """A host folder shown inside at `target`."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use. `cpus` in cores; `timeout_s` from its start to its end.

    `idle_s`: seconds without a call in flight and without CPU time after which it is ended, 0 for never.
    `grace_s`: seconds from SIGTERM to SIGKILL. `file_bytes` bounds each file. `disk_bytes` and `num_files` bound
    its writable folders together: by a file system of that size where the host can mount one (`workspace`), else
    by a look every two seconds, which stops a runaway and is no quota.
    """

    memory_bytes: int = 1_000_000_000
    pids: int = 128
    cpus: float = 2.0
    timeout_s: float = 300.0
    idle_s: float = 0.0
    grace_s: float = 2.0
    tmpfs_bytes: int = 256_000_000
    file_bytes: int = 256_000_000
    disk_bytes: int = 512_000_000
    num_files: int = 100_000


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """One launch. `proxy_dir` is the host folder that holds the rollout's proxy.sock; None: no proxy.

    `launch_dir` is the host folder of the pipe that a waiting sandbox reads; `argv` and `env` then come through it.
    `waits_s`: how long it may wait. `may_nest`: its harness makes namespaces of its own.
    """

    name: str
    image: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/workspace"
    mounts: tuple[Mount, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = Limits()
    proxy_dir: Path | None = None
    launch_dir: Path | None = None
    waits_s: float = 0.0
    may_nest: bool = False


def create_request(spec: SandboxSpec, places: PodmanPlaces, traits: HostTraits) -> dict[str, object]:
    """Podman's create request."""
    limits = spec.limits
    argv = _command(spec)
    request: dict[str, object] = {
        "name": spec.name, "image": spec.image, "entrypoint": argv[:1], "command": argv[1:],
        "env": dict(spec.env), "httpproxy": False, "work_dir": spec.workdir, "hostname": "sandbox",
        "user": f"{AGENT_ID}:{AGENT_ID}", "init": True,
        "labels": {OWNER_LABEL: "1", MAKER_LABEL: maker(), **spec.labels},
        "netns": {"nsmode": "none"}, "use_image_hosts": True, "use_image_resolve_conf": True,
        "read_only_filesystem": True, "mounts": _mounts(spec), "shm_size": 16 << 20, "image_volume_mode": "ignore",
        "cap_drop": ["all"], "no_new_privileges": True,
        "seccomp_profile_path": str(places.seccomp(spec.may_nest)),
        "r_limits": _process_limits(limits, traits),
        "timeout": math.ceil(spec.waits_s + limits.timeout_s + limits.grace_s) + DEAD_MAN_GRACE_S, "stop_timeout": 0,
        "log_configuration": {"driver": "k8s-file", "size": LOG_BYTES},
    }  # fmt: skip
    if not traits.is_root:
        # Rootless: the user who runs Corral is the agent inside, so that mounted folders fit.
        request["userns"] = {"nsmode": "keep-id", "value": f"uid={AGENT_ID},gid={AGENT_ID}"}
    elif traits.can_map_ids:
        # One fixed range: Podman's own choice of one a container locks its store when many are made at once.
        ids = [{"container_id": 0, "host_id": FIRST_HOST_ID, "size": NUM_IDS}]
        request["userns"] = {"nsmode": "private"}
        request["idmappings"] = {"UIDMap": ids, "GIDMap": ids, "HostUIDMapping": False, "HostGIDMapping": False}
    if traits.is_root and not traits.has_systemd_cgroups:
        request["cgroup_parent"] = f"/{places.cgroup}"
    # A limit that this user may not set would keep the container from starting.
    resources = _resources(limits).items()
    request["resource_limits"] = {key: limit for key, limit in resources if key in traits.controllers}
    return request


def launch_script(argv: tuple[str, ...], env: Mapping[str, str], workdir: str) -> str:
    """What a waiting sandbox becomes: shell text, every word quoted. ValueError for a NUL byte or a bad name."""
    lines = []
    for name, value in env.items():
        if not name.replace("_", "a").isalnum() or not name.isascii() or name[0].isdigit():
            raise ValueError(f"environment variable {name!r} has no name that a shell takes")
        lines.append(f"export {name}={shlex.quote(value)}\n")
    lines.append(f"cd {shlex.quote(workdir)} && exec {shlex.join(argv)}\n")
    script = "".join(lines)
    if "\0" in script:
        raise ValueError("a NUL byte cannot be passed to a program")
    return script


def maker() -> str:
    """This process, as a label says it: its pid and when it started, in clock ticks since boot."""
    return f"{os.getpid()}:{_started_ticks(os.getpid())}"


def is_alive(label: str) -> bool:
    """Whether the process that a label names still runs; a later one of the same number does not count."""
    pid, _, ticks = label.partition(":")
    return pid.isdigit() and _started_ticks(int(pid)) == ticks != ""


def _started_ticks(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _command(spec: SandboxSpec) -> list[str]:
    if spec.launch_dir is not None:
        return ["/bin/sh", "-c", (FORWARDER if spec.proxy_dir is not None else "") + WAIT]
    if spec.proxy_dir is not None:
        return ["/bin/sh", "-c", FORWARD, "forward", *spec.argv]
    return list(spec.argv)


def _mounts(spec: SandboxSpec) -> list[dict[str, object]]:
    mounts = [_bind(mount) for mount in spec.mounts]
    if spec.proxy_dir is not None:
        mounts.append(_bind(Mount(spec.proxy_dir, PROXY_FOLDER, read_only=True)))
    if spec.launch_dir is not None:
        mounts.append(_bind(Mount(spec.launch_dir, LAUNCH_FOLDER, read_only=True)))
    if not any(mount.target == "/tmp" for mount in spec.mounts):
        mounts.append(_tmpfs("/tmp", spec.limits.tmpfs_bytes))
    return mounts


def _bind(mount: Mount) -> dict[str, object]:
    mode = "ro" if mount.read_only else "rw"
    options = ["rbind", mode, "nosuid", "nodev"]
    return {"type": "bind", "source": str(mount.source.absolute()), "destination": mount.target, "options": options}


def _tmpfs(target: str, size_bytes: int) -> dict[str, object]:
    """Podman takes no limit of files here; they count as memory."""
    options = [f"size={size_bytes}", "mode=1777", "nosuid", "nodev"]
    return {"type": "tmpfs", "source": "tmpfs", "destination": target, "options": options}


def _resources(limits: Limits) -> dict[str, object]:
    period_us = 100_000
    return {
        "memory": {"limit": limits.memory_bytes, "swap": limits.memory_bytes},
        "pids": {"limit": limits.pids},
        "cpu": {"period": period_us, "quota": int(limits.cpus * period_us)},
    }


def _process_limits(limits: Limits, traits: HostTraits) -> list[dict[str, object]]:
    """Beyond the file limit a write is answered with SIGXFSZ. None is above our own, which could not be set."""
    own = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    file_bytes = limits.file_bytes if own == resource.RLIM_INFINITY else min(own, limits.file_bytes)
    most = {"fsize": file_bytes, "core": 0}
    if not traits.can_raise_limits:  # a request with limits does not get those of containers.conf
        most |= {"nofile": min(traits.max_files, 16384), "nproc": min(traits.max_processes, 32768)}
    return [{"type": name, "soft": limit, "hard": limit} for name, limit in most.items()]
