"""A root of its own: Python and the system's libraries, mounted read-only, and nothing else of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Makes the root in namespaces of its own, and runs a command in it.
ENTER = """
set -eu
for each in $MOUNTED; do
    from=${each%%=*} to=$FRESH${each#*=}
    mkdir -p "$to" && mount --bind "$from" "$to" && mount -o remount,ro,bind "$to"
done
mount -t tmpfs tmpfs "$FRESH$HIDDEN"
mount -t proc proc "$FRESH/proc"
mount -t tmpfs -o mode=1777 tmpfs "$FRESH/tmp"
mount -t tmpfs -o mode=1777 tmpfs "$FRESH/dev/shm"
for each in null zero urandom; do touch "$FRESH/dev/$each" && mount --bind "/dev/$each" "$FRESH/dev/$each"; done
exec chroot --userspec="$AS" "$FRESH" /usr/bin/env -i "$@"
"""

#: Packages that belong to Python itself, which an image does not have.
HIDDEN = sysconfig.get_path("purelib", vars={"base": sys.base_prefix})

PYTHON = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"

PATH = f"{sys.base_prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def may_make_namespaces() -> bool:
    """Return whether this process may make the namespaces of a root."""
    tried = ["unshare", "--mount", "--net", "--pid", "--fork", "true"]
    return (
        os.geteuid() == 0
        and shutil.which("unshare") is not None
        and not subprocess.run(tried, check=False, capture_output=True).returncode
    )


@dataclass(frozen=True)
class FreshRoot:
    """A folder that is the root of commands.

    Attributes:
        folder: The folder, which is made.
        mounted: Further folders of this machine, by their places in the root.
        has_network: Whether commands use the network of this machine.
    """

    folder: Path
    mounted: Mapping[str, str] = field(default_factory=dict)
    has_network: bool = False

    def __post_init__(self) -> None:
        for name in ("proc", "dev/shm", "tmp", "etc"):
            (self.folder / name).mkdir(parents=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            if os.path.islink(f"/{name}"):
                (self.folder / name).symlink_to(f"usr/{name}")
        (self.folder / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
        (self.folder / "etc/group").write_text("root:x:0:\n")
        for name in ("resolv.conf", "hosts", "nsswitch.conf") if self.has_network else ():
            if Path("/etc", name).exists():
                shutil.copy(Path("/etc", name), self.folder / "etc")

    def run(
        self, words: Sequence[str], environment: Mapping[str, str], user: str = "0:0", limit_s: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the root as a user, given as numbers of user and group."""
        system = {"/usr": "/usr"} | ({} if sys.base_prefix.startswith("/usr/") else {sys.base_prefix: sys.base_prefix})
        mounted = {place: source for source, place in system.items()} | dict(self.mounted)
        own = {
            "PATH": os.environ["PATH"],
            "FRESH": str(self.folder),
            "MOUNTED": " ".join(f"{source}={place}" for place, source in mounted.items()),
            "HIDDEN": HIDDEN,
            "AS": user,
        }
        apart = ["--mount", "--pid", "--fork", "--ipc", *([] if self.has_network else ["--net"])]
        given = [f"{name}={value}" for name, value in environment.items()]
        return subprocess.run(
            ["unshare", *apart, "bash", "-c", ENTER, "enter", *given, *words],
            env=own,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
