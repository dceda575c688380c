"""Which addresses a server may listen on while connections are not authenticated."""

import asyncio
import ipaddress
import socket

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
