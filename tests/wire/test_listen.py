"""Where a server may listen, what it says where it cannot, and whose socket file is whose."""

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from esker.wire import rpc_server
from esker.wire.errors import UserError
from esker.wire.listen import check_listen_address
from esker.wire.messages import Empty, Method, StatsReply
from esker.wire.rpc_client import Connection, TcpAddress, UnixAddress
from esker.wire.rpc_server import Identity, RpcServer, unary

from ..waiting import until
from .peers import WAIT_S, serving


def server(drive_id: str = "drive-1") -> RpcServer:
    return RpcServer({}, Identity("cluster-1", drive_id, "life-1"))


async def who_answers(path: Path) -> str:
    """The drive id of the server at `path`."""
    connection = await Connection.connect(UnixAddress(str(path)), role="client", timeout_s=WAIT_S)
    await connection.aclose()
    return connection.peer.drive_id


async def test_a_port_in_use_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=f"^cannot listen on 127.0.0.1:{port}: Address already in use; stop what "):
            await server().listen_tcp("127.0.0.1", port)


async def test_a_port_just_left_can_be_taken_again(short_directory: Path) -> None:
    async with serving(short_directory) as served:
        connection = await served.connect()
        port = served.tcp.port
    second = server()
    assert await second.listen_tcp("127.0.0.1", port) == port
    await second.aclose()
    await connection.aclose()


@pytest.mark.parametrize(
    ("host", "port", "why"),
    [
        ("127.0.0.1", 65536, r"port is 65536; allowed: 0 \(any free one\) to 65535"),
        ("127.0.0.1", -1, r"port is -1; allowed"),
        ("127.0.0.1", 99999, r"port is 99999; allowed"),
        ("host.invalid", 0, r"cannot listen on 'host.invalid': "),
        ("x" * 70, 0, r"cannot listen on 'xxx"),
        ("198.51.100.1", 0, r"cannot listen on 198.51.100.1:0: Cannot assign requested address$"),
    ],
)
async def test_an_address_that_cannot_be_had_is_named(host: str, port: int, why: str) -> None:
    with pytest.raises(UserError, match=f"^{why}"):
        await server().listen_tcp(host, port)


async def test_only_loopback_unless_asked_for_in_so_many_words() -> None:
    for host in ("127.0.0.1", "localhost", "127.1.2.3"):
        await check_listen_address(host, 0, insecure=False)
    for host in ("0.0.0.0", "198.51.100.1"):
        with pytest.raises(UserError, match=f"^{host} can be reached from other machines.* --insecure"):
            await check_listen_address(host, 0, insecure=False)
        await check_listen_address(host, 0, insecure=True)
    with pytest.raises(UserError, match="allowed: 0"):
        await check_listen_address("127.0.0.1", 65536, insecure=False)
    with pytest.raises(UserError, match="give an address of this machine"):
        await check_listen_address("host.invalid", 0, insecure=False)


async def test_a_socket_file_is_private_and_goes_with_its_server(short_directory: Path) -> None:
    path = short_directory / "socket"
    first = server()
    await first.listen_unix(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await first.aclose()
    assert not path.exists()


async def test_a_stale_socket_file_is_replaced(short_directory: Path) -> None:
    path = short_directory / "socket"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    second = server("second")
    await second.listen_unix(str(path))
    assert await who_answers(path) == "second"
    await second.aclose()


async def test_a_server_leaves_a_socket_file_that_another_one_has_put_in_its_place(short_directory: Path) -> None:
    path = short_directory / "socket"
    first, second = server("first"), server("second")
    await first.listen_unix(str(path))
    await second.listen_unix(str(path))
    await first.aclose()
    assert await who_answers(path) == "second"
    await second.aclose()
    assert not path.exists()


async def test_a_socket_file_may_be_gone_already(short_directory: Path) -> None:
    path = short_directory / "socket"
    first = server()
    await first.listen_unix(str(path))
    path.unlink()
    await first.aclose()
    assert not path.exists()


async def test_what_is_no_socket_is_left_alone(short_directory: Path) -> None:
    file, directory, link = short_directory / "file", short_directory / "directory", short_directory / "link"
    file.write_text("precious")
    directory.mkdir()
    link.symlink_to(file)
    for path in (file, directory, link):
        with pytest.raises(UserError, match=f"^cannot listen on {path}: Address already in use$"):
            await server().listen_unix(str(path))
    assert file.read_text() == "precious"
    assert link.is_symlink()


@pytest.mark.parametrize("name", ["missing/socket", "x" * 120])
async def test_a_path_that_cannot_be_had_is_named(name: str, short_directory: Path) -> None:
    with pytest.raises(UserError, match=f"^cannot listen on {short_directory / name}: "):
        await server().listen_unix(str(short_directory / name))
    assert os.listdir(short_directory) == []


async def test_without_descriptors_the_listener_rests_and_goes_on(
    short_directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def stats(request: Empty) -> StatsReply:
        return StatsReply({})

    monkeypatch.setattr(rpc_server, "ACCEPT_PAUSE_S", 0.01)
    refusals = 0
    accept = socket.socket.accept

    def short_of_descriptors(listener: socket.socket) -> Any:
        nonlocal refusals
        if refusals < 3:
            refusals += 1
            raise OSError(24, "Too many open files")
        return accept(listener)

    async with serving(short_directory, {Method.STATS: unary(Empty, stats)}) as served:
        monkeypatch.setattr(socket.socket, "accept", short_of_descriptors)
        connection = await served.connect()
        assert refusals == 3
        assert caplog.text.count("cannot accept a connection; raise the limit of open files") == 3
        await connection.call(Method.STATS, Empty(), StatsReply, timeout_s=WAIT_S)
        await connection.aclose()


async def test_a_listener_that_rests_while_its_server_closes_stays_closed(
    short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def never(listener: socket.socket) -> Any:
        asked.append(1)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(rpc_server, "ACCEPT_PAUSE_S", 0.01)
    async with serving(short_directory) as served:
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "accept", never)
            with socket.create_connection((served.tcp.host, served.tcp.port)):
                await until(lambda: asked, "an attempt to accept")
        await served.server.aclose()
        other = server("other")
        port = await other.listen_tcp("127.0.0.1", 0)  # likely on the descriptor of the one that rests
        connection = await Connection.connect(TcpAddress("127.0.0.1", port), role="client", timeout_s=WAIT_S)
        assert connection.peer.drive_id == "other"
        await connection.aclose()
        await other.aclose()
