"""A worker whose drive directory vanishes under it: it says so and refuses, and does not go on as if nothing were."""

from pathlib import Path

from esker.wire.status import Status

from .processes import one_drive
from .raw_client import content


async def test_a_directory_that_vanishes_takes_the_drive_offline(tmp_path: Path) -> None:
    async with one_drive(tmp_path) as process, await process.client() as client:
        assert (await client.create({1: content(1)}))[1] is Status.OK
        (tmp_path / "drive").rename(tmp_path / "elsewhere")
        await process.logs("the drive failed; its targets go offline")
        assert (await client.create({2: content(2)}))[2] is not Status.OK
