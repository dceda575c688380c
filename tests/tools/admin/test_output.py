"""How `esker admin` prints."""

import pytest

from esker.tools.admin.output import print_table


def test_a_row_is_one_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    print_table(("name", "#figure"), [(long, 1), ("b", 22)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[2:]] == [[long, "│", "1"], ["b", "│", "22"]]
