"""What a check of the catalog tells people."""

import pytest

from esker.tools.admin.catalog_check import NamespaceCheck
from esker.tools.admin.catalog_command import CatalogCheck, explain

WHY = "chain 3, drive d: cannot connect"


def test_what_keeps_several_namespaces_from_being_checked_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["a", "b", "c", "d", "e"]
    namespaces = [NamespaceCheck(name, number, unchecked=[WHY]) for number, name in enumerate(names)]
    explain(CatalogCheck(namespaces, unchecked=["chain 4 has no worker at its head"]), repair=False)
    *_, first, second = capsys.readouterr().out.splitlines()
    assert first == f"a, b, c and 2 more were not checked whole: {WHY}"
    assert second == "not looked at: chain 4 has no worker at its head"
    explain(CatalogCheck(namespaces[:1]), repair=False)
    assert capsys.readouterr().out.splitlines()[-1] == f"a was not checked whole: {WHY}"
