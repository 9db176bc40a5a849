"""Downloads that go on where they stopped and are checked before they count."""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from ..runs.errors import UserError
from .progress import Report, silent

_BLOCK = 1 << 16
_BY_HAND = "or get it by other means and hand it to `shrinx data prepare`"


def download(url: str, path: Path, *, sha256: str, report: Report = silent, timeout: float = 30.0) -> None:
    """Bring `url` to `path`, unless it is there already.

    What has arrived waits in `path` + `.part`: after an interruption the next call asks for the rest alone. The file
    gets its name when its checksum is right; a wrong one is deleted.
    """
    if path.is_file() and _digest(path) == sha256:
        size = path.stat().st_size
        report(size, size)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    if not (part.is_file() and _digest(part) == sha256):
        _receive(url, part, report, timeout)
    if (found := _digest(part)) != sha256:
        part.unlink()
        raise UserError(
            f"{url} gave a file with another checksum (sha256 {found[:12]}…, not {sha256[:12]}…), which was deleted; "
            f"try again, {_BY_HAND}."
        )
    os.replace(part, path)


def _receive(url: str, part: Path, report: Report, timeout: float) -> None:
    """Append the rest of `url` to `part`, or write all of it if the server does not send parts."""
    have = part.stat().st_size if part.is_file() else 0
    try:
        response, start = _open(url, have, timeout)
        with response:
            done, total = _write(response, part, start, report)
    except urllib.error.HTTPError as error:
        error.close()
        raise UserError(f"{url} answered {error.code} {error.reason}; try again later, {_BY_HAND}.") from error
    except urllib.error.URLError as error:
        raise UserError(f"No connection to {url} ({error.reason}); check the network, {_BY_HAND}.") from error
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise UserError(f"The connection to {url} broke ({error}); run the same command again to go on.") from error
    if total is not None and done < total:
        raise UserError(f"{url} ended after {done:,} of {total:,} bytes; run the same command again to go on.")


def _open(url: str, have: int, timeout: float) -> tuple[http.client.HTTPResponse, int]:
    """The server's response and the byte it starts at: `have`, or 0 if the server will not start there."""
    request = urllib.request.Request(url, headers={"User-Agent": "shrinx"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if have and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            error.close()
            return _open(url, 0, timeout)
        raise
    if not have or response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return response, 0
    if response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
        return response, have
    response.close()
    return _open(url, 0, timeout)


def _write(response: http.client.HTTPResponse, part: Path, start: int, report: Report) -> tuple[int, int | None]:
    """Write what arrives to `part` from byte `start` on; returns the size it has and the size it should have."""
    length = response.headers.get("Content-Length")
    done, total = start, None if length is None else start + int(length)
    with open(part, "ab" if start else "wb") as file:
        report(done, total)
        while block := response.read(_BLOCK):
            file.write(block)
            done += len(block)
            report(done, total)
        file.flush()
        os.fsync(file.fileno())
    return done, total


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
