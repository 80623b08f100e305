"""Traces by URL: fetched once, before the run, into a file that ends with the process."""

import atexit
import os
import shutil
import tempfile
from http.client import BadStatusLine, HTTPException, IncompleteRead, RemoteDisconnected
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

import typer

TOKEN = "BALLAST_ADMIN_TOKEN"
"""The variable with the token of a gateway that asks for one (`admin.tokenFile`)."""
_SCHEMES = ("http://", "https://")
_fetched: dict[Path, str] = {}
_TIMEOUT_S = 60.0
_MOST_BYTES = 4 * 1024**3


HELP = "Trace file (CSV or JSONL, plain or gzip), or its URL, such as of a gateway's /ballast/v1/traffic."


def trace_file(where: str | Path) -> Path:
    """The trace at a path or a URL, as a plain file. Raises `typer.BadParameter` where it cannot be fetched."""
    url = str(where)
    if not is_url(url):
        return Path(url)
    try:
        return _file_of(url)
    except ValueError as error:
        raise typer.BadParameter(f"{url}: {error}") from None


def is_url(where: str) -> bool:
    """Whether a trace is asked for there, and no file is meant."""
    return where.lower().startswith(_SCHEMES)


def origin(file: Path) -> str:
    """What the user named it: the URL of a fetched file."""
    return _fetched.get(file, str(file))


def with_origins(text: str) -> str:
    """A message with the URLs of fetched files in place of their paths, which are gone when it is read."""
    for file, url in _fetched.items():
        text = text.replace(str(file), url)
    return text


def fetched(url: str) -> bytes:
    """What a gateway's admin API answers. Raises ValueError with the reason where it cannot be fetched."""
    return _file_of(url).read_bytes()


def _file_of(url: str) -> Path:
    """Raises ValueError with the reason."""
    folder = Path(tempfile.mkdtemp(prefix="ballast-trace-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / (Path(urlsplit(url).path).name or "trace")
    try:
        _fetch(url, file)
    except HTTPError as error:
        error.close()  # it holds the connection
        hint = f"; the gateway's token goes into {TOKEN}" if error.code == 401 else ""
        raise ValueError(f"answered {error.code} {error.reason}{hint}") from None
    except (HTTPException, OSError, ValueError) as error:
        raise ValueError(f"cannot be fetched: {_reason(error)}") from None
    _fetched[file] = url
    return file


def _fetch(url: str, file: Path) -> None:
    from urllib.request import Request, urlopen

    request = Request(url)
    if token := os.environ.get(TOKEN):
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    with urlopen(request, timeout=_TIMEOUT_S) as answer, file.open("wb") as out:
        left = _MOST_BYTES
        while part := answer.read(1 << 20):
            left -= len(part)
            if left < 0:
                raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
            out.write(part)
        if answer.length:  # of the bytes that it announced
            raise ValueError(f"the answer broke off, {answer.length} bytes before its end")


def _reason(error: Exception) -> object:
    if isinstance(error, URLError):
        return error.reason
    if isinstance(error, IncompleteRead):
        return "the answer broke off"
    if isinstance(error, BadStatusLine) and not isinstance(error, RemoteDisconnected):
        return f"what answers is no HTTP server ({str(error)[:80]!r})"
    return error
