"""Structured logging: an event in a few fixed words, and its particulars as fields.

    log = get_logger("chunkserver.engine")
    log.warning("io_uring refused, using threads", reason="EPERM", fix="allow io_uring in the seccomp profile")

Underneath is the standard library: loggers are `esker.<name>`, and an application that uses the client sees the events
through its own handlers. Only a process of ours calls `configure`, which sends them to stderr, one line an event (a
traceback follows its line as text, and stands inside it as JSON). `ESKER_LOG_LEVEL` is debug, info (the default),
warning or error; `ESKER_LOG_FORMAT` is text (the default) or json. A field's value never breaks the line.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from esker.runtime.errors import SettingError

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
FORMATS = ("text", "json")


class _Event:
    """The message of a log record; only becomes text when a handler wants it."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: Mapping[str, object]) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        return " ".join([_one_line(self.name), *(f"{name}={_value(value)}" for name, value in self.fields.items())])


class Logger:
    """Logs events with the fields it is bound to, then the call's own."""

    __slots__ = ("_fields", "_target")

    def __init__(self, target: logging.Logger, fields: Mapping[str, object]) -> None:
        self._target = target
        self._fields = fields

    def bind(self, **fields: object) -> "Logger":
        """A logger that adds `fields` to every event."""
        return Logger(self._target, {**self._fields, **fields})

    def debug(self, event: str, /, **fields: object) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: object) -> None:
        """An error together with the exception that is being handled and its traceback: for our own bugs."""
        self._log(logging.ERROR, event, fields, exc_info=True)

    def _log(self, level: int, event: str, fields: Mapping[str, object], *, exc_info: bool = False) -> None:
        if self._target.isEnabledFor(level):
            self._target.log(level, _Event(event, {**self._fields, **fields}), exc_info=exc_info, stacklevel=3)


class _TextFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        name = record.name.removeprefix("esker.")
        message = str(record.msg) if isinstance(record.msg, _Event) else _one_line(record.getMessage())
        line = f"{_timestamp(record)} {record.levelname:<7} {self._process}[{record.process}] {name}: {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _JsonFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        event, fields = (
            (record.msg.name, record.msg.fields) if isinstance(record.msg, _Event) else (record.getMessage(), {})
        )
        line: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": record.process,
            "logger": record.name.removeprefix("esker."),
            "event": event,
        }
        if fields:
            line["fields"] = fields
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def get_logger(name: str) -> Logger:
    """The logger of one part of esker, such as `chunkserver.engine`."""
    return Logger(logging.getLogger(f"esker.{name}"), {})


def configure(process: str, *, environment: Mapping[str, str] = os.environ, stream: TextIO | None = None) -> None:
    """Sends esker's events to `stream` (stderr), marked with the process's name; a later call replaces an earlier one.

    Raises `SettingError` for a level or a format that does not exist.
    """
    level = _choice(environment, "ESKER_LOG_LEVEL", "info", tuple(LEVELS))
    form = _choice(environment, "ESKER_LOG_FORMAT", "text", FORMATS)
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(_TextFormatter(process) if form == "text" else _JsonFormatter(process))
    root = logging.getLogger("esker")
    root.handlers = [handler]
    root.setLevel(LEVELS[level])
    root.propagate = False


def _choice(environment: Mapping[str, str], name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = environment.get(name, "").strip().lower() or default
    if value not in allowed:
        raise SettingError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")
    return value


def _timestamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _value(value: object) -> str:
    """Bare where that is unambiguous, else quoted as JSON quotes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    plain = text.isascii() and text.isprintable() and not any(mark in text for mark in ' "=\\')
    return text if text and plain else json.dumps(text)


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text, ensure_ascii=False)[1:-1]
