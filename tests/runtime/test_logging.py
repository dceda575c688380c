"""Log lines as operators and machines read them."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from esker.runtime.errors import SettingError
from esker.runtime.logging import configure, get_logger


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger("esker")
    before = root.handlers, root.level, root.propagate
    yield
    root.handlers, root.propagate = before[0], before[2]
    root.setLevel(before[1])


def _configured(**environment: str) -> io.StringIO:
    stream = io.StringIO()
    configure("worker", environment=environment, stream=stream)
    return stream


def test_an_event_is_one_line_of_text_with_its_fields() -> None:
    stream = _configured()
    get_logger("chunkserver.engine").info("drive open", drive="d1", used_bytes=4096, share=0.25, direct=True)
    line = stream.getvalue()
    assert line.endswith(" chunkserver.engine: drive open drive=d1 used_bytes=4096 share=0.25 direct=true\n")
    assert line.split()[1] == "INFO"
    assert line.split()[2].startswith("worker[")


@pytest.mark.parametrize("value", ["two words", "a=b", 'quo"te', "new\nline", "", "back\\slash", "ünï", "\x1b[31m"])
def test_a_value_never_breaks_its_line(value: str) -> None:
    stream = _configured()
    get_logger("x").info("event", value=value, after=1)
    (line,) = stream.getvalue().splitlines()
    quoted = line.split("value=", 1)[1].removesuffix(" after=1")
    assert quoted.isprintable()
    assert json.loads(quoted) == value


def test_an_event_never_breaks_its_line() -> None:
    stream = _configured()
    get_logger("x").info("first\nsecond")
    assert stream.getvalue().endswith("x: first\\nsecond\n")
    assert stream.getvalue().count("\n") == 1


def test_json_carries_the_same_for_machines() -> None:
    stream = _configured(ESKER_LOG_FORMAT="json")
    get_logger("meta").warning("drive lost", drive="d1", error=OSError("gone\n"))
    line = json.loads(stream.getvalue())
    assert {name: line[name] for name in ("level", "process", "logger", "event", "fields")} == {
        "level": "warning",
        "process": "worker",
        "logger": "meta",
        "event": "drive lost",
        "fields": {"drive": "d1", "error": "gone\n"},
    }
    assert line["time"].endswith("Z")


def test_an_exception_brings_its_traceback() -> None:
    text, machine = _configured(), None
    log = get_logger("x")
    try:
        raise KeyError("lost")
    except KeyError:
        log.exception("handler failed", request_id=7)
        machine = _configured(ESKER_LOG_FORMAT="json")
        log.exception("handler failed", request_id=7)
    assert "handler failed request_id=7\nTraceback" in text.getvalue()
    assert "KeyError: 'lost'" in json.loads(machine.getvalue())["exception"]
    assert machine.getvalue().count("\n") == 1


def test_bound_fields_come_first_and_the_calls_own_win() -> None:
    stream = _configured()
    log = get_logger("x").bind(drive="d1", chain=1).bind(chain=2)
    log.info("event", chain=3, n=1)
    assert stream.getvalue().endswith("x: event drive=d1 chain=3 n=1\n")


def test_the_level_is_the_environments() -> None:
    quiet = _configured(ESKER_LOG_LEVEL="ERROR")
    get_logger("x").warning("unheard")
    get_logger("x").error("heard")
    assert quiet.getvalue().count("heard") == 1
    loud = _configured(ESKER_LOG_LEVEL="debug")
    get_logger("x").debug("detail")
    assert "detail" in loud.getvalue()


@pytest.mark.parametrize(("name", "value"), [("ESKER_LOG_LEVEL", "loud"), ("ESKER_LOG_FORMAT", "xml")])
def test_an_unknown_setting_is_refused_with_the_choices(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=rf"{name} is '{value}'; allowed: "):
        configure("worker", environment={name: value})


def test_an_application_sees_events_through_its_own_handlers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="esker"):
        get_logger("client").info("worker down", drive="d1")
    assert caplog.messages == ["worker down drive=d1"]


def test_records_of_other_code_below_our_name_are_lines_too() -> None:
    stream = _configured()
    logging.getLogger("esker.other").warning("plain %s\n", "record")
    assert stream.getvalue().endswith("other: plain record\\n\n")
