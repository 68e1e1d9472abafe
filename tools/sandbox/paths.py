"""What of the machine's files a tool's process sees: what it takes to run Python, and code. Nothing else of a checkout,
which may hold a database, `.env`, `secrets/` and `.git`.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

# Programs, libraries, and what they read to find each other and to check certificates.
# Not all of /usr: below /usr/src and /usr/local, too, there may be somebody's checkout.
SYSTEM = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/libexec", "/usr/share"),
    *("/usr/local/bin", "/usr/local/lib", "/usr/local/lib64", "/usr/local/share"),
)
SYSTEM_FILES = (
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives", "/etc/mime.types"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ca-certificates", "/etc/pki/tls/certs", "/etc/pki/ca-trust"),
)
# What finds names of the internet, besides.
NETWORK_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf")


def system(*, network: bool) -> Iterator[Path]:
    """Those that there are, as they are named there: some are links."""
    for name in (*SYSTEM, *SYSTEM_FILES, *(NETWORK_FILES if network else ())):
        if os.path.lexists(name):
            yield Path(name)


def code(base: Path, apps: Iterable[str]) -> list[Path]:
    """The interpreter, the packages it has installed, and the modules of the other places that it imports from.

    ``base``: the project's folder. ``apps``: of the user's own; those that are no packages by themselves are found too.
    """
    places = dict.fromkeys(Path(each or ".").absolute() for each in (*sys.path, str(base)))
    prefixes = dict.fromkeys((sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix))
    installed = [Path(prefix, name) for prefix in prefixes for name in ("bin", "lib", "lib64", "pyvenv.cfg")]
    found = [*_links(Path(sys.executable)), *installed]
    for place in places:
        if place.name in ("site-packages", "dist-packages") or place.is_file():
            found.append(place)
        elif place.is_dir() and not any(place.is_relative_to(each) for each in installed):
            found += _modules(place, {app.partition(".")[0] for app in apps})
    return list(dict.fromkeys(path for path in found if path.exists() and path != Path("/")))


def _modules(place: Path, apps: set[str]) -> Iterator[Path]:
    """The modules and packages of a folder; the rest of it is nobody's."""
    for each in sorted(place.iterdir()):
        is_package = each.is_dir() and ((each / "__init__.py").is_file() or each.name in apps)
        if is_package or (each.suffix in (".py", ".so") and each.is_file()):
            yield each


def _links(path: Path) -> Iterator[Path]:
    """A path, and all that it is a link to, one after the other."""
    for _ in range(40):
        yield path
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()
