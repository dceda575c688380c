"""Where the rows come from: a store that is there, or none."""

import os
from pathlib import Path

import pytest

from esker.meta.admin_raw import FIRST_KEY
from esker.meta.store.base import KEY_END
from esker.meta.store.embedded import open_embedded
from esker.tools.admin.meta_source import open_rows
from esker.wire.errors import UserError


@pytest.mark.parametrize("name", ["absent", "empty"])
async def test_a_store_is_never_made_to_be_looked_at(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="there is no metadata store in"):
        async with open_rows(None, f"embedded:{tmp_path / name}", ""):
            pass
    assert [found for _, *found in os.walk(tmp_path)] == [[["empty"], []], [[], []]]


async def test_a_store_that_is_there_is_read(tmp_path: Path) -> None:
    await (await open_embedded(tmp_path / "store")).aclose()
    async with open_rows(None, f"embedded:{tmp_path / 'store'}", "") as rows:
        assert not (await rows.page(FIRST_KEY, KEY_END, 10)).rows
