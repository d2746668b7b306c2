"""Write the log as JSON, one object per line."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any


def configure_json_logging(*, log_requests: bool) -> None:
    """Send the log to standard error as JSON.

    Parameters
    ----------
    log_requests : bool
        Whether to log all requests, and not only those that fail.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    if log_requests:
        logging.getLogger("fastshapley.requests").setLevel(logging.DEBUG)


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object: time, level, logger, message, and the record's ``fields``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of the log.

        Parameters
        ----------
        record : LogRecord
            The record.

        Returns
        -------
        line : str
            A JSON object.
        """
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "time": f"{second}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)
