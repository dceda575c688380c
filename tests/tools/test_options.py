"""How options are read."""

import pytest

from esker.runtime.errors import SettingError
from esker.tools.commands.options import seconds


@pytest.mark.parametrize(
    ("text", "value_s"), [("5", 5.0), ("2.5s", 2.5), ("500ms", 0.5), ("3m", 180.0), ("24h", 86_400.0)]
)
def test_times(text: str, value_s: float) -> None:
    assert seconds(text) == value_s


@pytest.mark.parametrize("text", ["", "h", "0", "-1s", "1d", "nan", "inf", "1e9h"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(SettingError, match="not a time"):
        seconds(text)
