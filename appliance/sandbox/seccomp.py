"""The sandboxes' system call filter: the stock profile, and on top of it what an agent has no business with.

New namespaces, mounts, keys, tracing and kernel probes are refused; sockets are of the families that programs
use and none that leaves the network namespace (a VM socket would). Calls of another word size are not taken
at all, since a filter by argument does not see theirs. A harness that sandboxes its own commands gets the
second filter, which lets it make namespaces and nothing more: capabilities in one reach only what is in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STOCK_PROFILES = (Path("/etc/containers/seccomp.json"), Path("/usr/share/containers/seccomp.json"))
NAMESPACE_CALLS = (
    "unshare", "setns", "mount", "umount", "umount2", "mount_setattr", "move_mount", "fsopen", "fsconfig",
    "fsmount", "fspick", "open_tree", "pivot_root",
)  # fmt: skip
KERNEL_CALLS = (
    "keyctl", "add_key", "request_key", "bpf", "userfaultfd", "perf_event_open", "io_uring_setup", "io_uring_enter",
    "io_uring_register", "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "process_madvise",
    "name_to_handle_at", "open_by_handle_at", "quotactl", "quotactl_fd", "acct", "swapon", "swapoff", "syslog",
    "lookup_dcookie", "fanotify_init", "adjtimex", "clock_adjtime", "clock_settime", "settimeofday", "vhangup",
    "socketcall", "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot",
    "iopl", "ioperm", "modify_ldt",
)  # fmt: skip
CLONE_NEW_FLAGS = 0x7E020000  # NEWNS|NEWCGROUP|NEWUTS|NEWIPC|NEWUSER|NEWPID|NEWNET
SOCKET_FAMILIES = (1, 2, 10, 16)  # unix, inet, inet6, netlink (Node lists its interfaces by it)
ENOSYS = 38
EPERM = 1


def profile(may_nest: bool = False) -> str:
    """The filter as JSON text; `may_nest`: for a harness that makes namespaces of its own.

    Where the distribution ships no profile, everything is allowed that is not refused here: weaker, and
    `corral doctor` says so.
    """
    stock = stock_profile()
    base: dict[str, Any] = json.loads(stock.read_text()) if stock else {"defaultAction": "SCMP_ACT_ALLOW"}
    refused = {*KERNEL_CALLS} | (set() if may_nest else {*NAMESPACE_CALLS})
    rules = _without(base.get("syscalls", []), {*KERNEL_CALLS, *NAMESPACE_CALLS, "socket", "clone", "clone3"})
    rules.append({"names": sorted(refused), "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM})
    rules += (_family_allowed() if stock else _families_refused()) + (_nesting() if may_nest else _no_namespaces())
    native = [{"architecture": a["architecture"], "subArchitectures": []} for a in base.get("archMap", [])]
    return json.dumps(base | {"archMap": native, "syscalls": rules}, indent=1) + "\n"


def stock_profile() -> Path | None:
    """The distribution's own profile; None where it ships none."""
    return next((path for path in STOCK_PROFILES if path.is_file()), None)


def _without(rules: list[dict[str, Any]], names: set[str]) -> list[dict[str, Any]]:
    kept = [rule | {"names": [name for name in rule["names"] if name not in names]} for rule in rules]
    return [rule for rule in kept if rule["names"]]


def _family_allowed() -> list[dict[str, Any]]:
    """What the stock profile then refuses by its default are the other families."""
    return [{"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [_first(family)]} for family in SOCKET_FAMILIES]


def _families_refused() -> list[dict[str, Any]]:
    others = [_first(family) for family in range(64) if family not in SOCKET_FAMILIES]
    refusal = {"names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM}
    return [refusal | {"args": [argument]} for argument in (*others, _first(63, "GT"))]


def _no_namespaces() -> list[dict[str, Any]]:
    no_flags = {"index": 0, "value": CLONE_NEW_FLAGS, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    return [
        {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [no_flags]},
        # clone3's flags lie in memory, out of the filter's sight; ENOSYS makes libc use clone.
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS},
    ]


def _nesting() -> list[dict[str, Any]]:
    return [{"names": ["clone", "clone3", "chroot", *NAMESPACE_CALLS], "action": "SCMP_ACT_ALLOW"}]


def _first(value: int, comparison: str = "EQ") -> dict[str, Any]:
    """The first argument compared with a value."""
    return {"index": 0, "value": value, "valueTwo": 0, "op": f"SCMP_CMP_{comparison}"}
