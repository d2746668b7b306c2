"""The log as JSON, one object per line."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import textwrap

from fastshapley.serving.json_logging import JsonFormatter


def test_a_record_becomes_one_json_object() -> None:
    record = logging.LogRecord("a.logger", logging.WARNING, "file", 1, "%s rows", (3,), None)
    record.created, record.msecs = 0.25, 250.0
    record.fields = {"status": 400}
    assert json.loads(JsonFormatter().format(record)) == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "warning",
        "logger": "a.logger",
        "message": "3 rows",
        "status": 400,
    }


def test_an_exception_is_in_the_same_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, "file", 1, "failed", (), sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert "ValueError: broken" in json.loads(line)["trace"]


def test_log_and_warnings_go_to_standard_error_and_requests_only_if_wanted() -> None:
    script = """
        import logging, sys, warnings
        from fastshapley.serving.json_logging import configure_json_logging
        configure_json_logging(log_requests=sys.argv[1] == "all")
        logging.getLogger("fastshapley.requests").debug("request")
        warnings.warn("careful")
    """
    for wanted, loggers in (("all", ["fastshapley.requests", "py.warnings"]), ("failed", ["py.warnings"])):
        command = [sys.executable, "-c", textwrap.dedent(script), wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert [json.loads(line)["logger"] for line in done.stderr.splitlines()] == loggers
        assert done.stdout == ""
