"""The connections of removals: a worker is asked only in the very life that the cluster map has."""

import pytest

from esker.meta.admin_drives import TcpDrives
from esker.wire.admin_messages import Scan, ScanReply
from esker.wire.errors import ConnectionFailed, ProtocolError
from esker.wire.messages import Method
from esker.wire.rpc_server import Identity, RpcServer, unary

from .conftest import worker


async def scanned(request: Scan) -> ScanReply:
    return ScanReply(b"", b"", b"", 0)


async def test_what_another_worker_at_the_address_has_is_not_asked() -> None:
    other = RpcServer({Method.SCAN: unary(Scan, scanned)}, Identity("c1", "d1", "second"))
    port = await other.listen_tcp("127.0.0.1", 0)
    drives = TcpDrives("c1")
    try:
        with pytest.raises(ConnectionFailed, match="is not the worker of drive d0 any more"):
            await drives.scan(worker(0, port=port), Scan(1, b"", 10, 1))
        mine = worker(1, port=port, incarnation="second")
        assert await drives.scan(mine, Scan(1, b"", 10, 1)) == ScanReply(b"", b"", b"", 0)
    finally:
        await drives.aclose()
        await other.aclose()


async def test_rows_that_are_cut_off_are_no_reply() -> None:
    async def cut_off(request: Scan) -> ScanReply:
        return ScanReply(b"x", b"", b"", 0)

    server = RpcServer({Method.SCAN: unary(Scan, cut_off)}, Identity("c1", "d0", "first"))
    drives = TcpDrives("c1")
    try:
        place = worker(0, port=await server.listen_tcp("127.0.0.1", 0))
        with pytest.raises(ProtocolError, match="sent 1 bytes of rows"):
            await drives.scan(place, Scan(1, b"", 10, 1))
    finally:
        await drives.aclose()
        await server.aclose()
