"""Where servers listen: which addresses are allowed without authentication, and the sockets that listen there."""

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import stat

from esker.wire.errors import UserError


async def check_listen_address(host: str, port: int, insecure: bool) -> None:
    """Raises `UserError` for an address other machines reach, unless that was asked for in so many words."""
    if not 0 <= port <= 65535:
        raise UserError(f"port is {port}; allowed: 0 (any free one) to 65535")
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise UserError(f"cannot listen on {host!r}: {error}; give an address of this machine") from error
    outside = [info[4][0] for info in infos if not ipaddress.ip_address(info[4][0]).is_loopback]
    if outside and not insecure:
        raise UserError(
            f"{host} can be reached from other machines, and there is no authentication yet; "
            "listen on 127.0.0.1, or give --insecure if every machine of this network is trusted"
        )


def tcp_listener(host: str, port: int, backlog: int) -> socket.socket:
    """A socket that listens on `host`:`port` (0: any free port). Raises `UserError` if that cannot be."""
    if not 0 <= port <= 65535:
        raise UserError(f"port is {port}; allowed: 0 (any free one) to 65535")
    try:
        info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise UserError(f"cannot listen on {host!r}: {error}") from error
    sock = socket.socket(info[0], socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(info[4])
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        hint = "; stop what listens there or choose another port" if error.errno == errno.EADDRINUSE else ""
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}{hint}") from error
    return sock


def unix_listener(path: str, backlog: int) -> tuple[socket.socket, int]:
    """A socket that listens on `path`, in the place of an older one, and the file's inode.

    Raises `UserError` if that cannot be. Whatever stands there and is no socket is left alone.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                os.unlink(path)
        sock.bind(path)
        os.chmod(path, 0o600)
        sock.listen(backlog)
        return sock, os.stat(path).st_ino
    except OSError as error:
        sock.close()
        raise UserError(f"cannot listen on {path}: {error.strerror or error}") from error


def unlink_own(path: str, inode: int) -> None:
    """Removes the socket file, unless another server has put its own there."""
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_ino == inode:
            os.unlink(path)
