"""On which file system does a folder lie? Asked of the kernel's own table, so that nothing has to be tried."""

from __future__ import annotations

from pathlib import Path

NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs", "ocfs2", "gfs2"}
    | {"fuse.sshfs", "fuse.ceph", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse"}
)
"""File systems whose files several machines may have open; SQLite's WAL is not safe on them."""


def network_filesystem(folder: Path, table: Path = Path("/proc/self/mountinfo")) -> str:
    """The name of the network file system that `folder` lies on, or "" when it is a local one or cannot be told."""
    try:
        lines = table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    where, kind = folder.resolve(), ""
    longest = -1
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split(" ")[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        if where.is_relative_to(point) and len(point) >= longest:  # the later of two on one point covers the earlier
            longest, kind = len(point), after.split(" ")[0]
    return kind if kind in NETWORK else ""
