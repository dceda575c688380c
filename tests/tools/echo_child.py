"""A child for the tests of `tools/child.py`: does what its lines say."""

import asyncio

import msgspec

from esker.tools.child import run_child
from esker.wire.errors import ConnectionFailed, EskerError, UserError


class Say(msgspec.Struct):
    text: str
    do: str = "say"


class Echo:
    async def answer(self, line: bytes) -> msgspec.Struct:
        request = msgspec.json.decode(line, type=Say)
        errors = {"misuse": UserError, "unreachable": ConnectionFailed, "fail": EskerError}
        if request.do in errors:
            raise errors[request.do](request.text)
        if request.do == "hang":
            await asyncio.Event().wait()
        if request.do == "crash":
            raise SystemExit(7)
        return Say(request.text)

    async def aclose(self) -> None:
        pass


if __name__ == "__main__":
    run_child(Echo())
