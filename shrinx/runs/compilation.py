"""Compiled programs kept between processes, so that what has run once starts at once."""

import hashlib
import os
import platform
from pathlib import Path

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from .files import user_cache

VARIABLE = "SHRINX_CACHE"
LARGEST_BYTES = 2_000_000_000
"""Beyond this the programs that were made first are removed."""
SHORTEST_SECONDS = 0.2
"""What compiles faster is not worth a file."""


def keep_programs(folder: str | Path | None = None) -> Path | None:
    """Let JAX keep compiled programs in a folder, by default the one that `$SHRINX_CACHE` names or `shrinx/programs` in
    the user's cache directory. The command line calls it; in a program of your own, call it before the first `jit`.

    **Returns:** the folder; `None` if `$SHRINX_CACHE` is `off`, if JAX has been given a folder of its own
    (`JAX_COMPILATION_CACHE_DIR`), or if the folder cannot be written, since a run can do without.
    """
    named = os.environ.get(VARIABLE, "")
    if named.lower() in ("off", "0", "false", "no"):
        return None
    if jax.config.jax_compilation_cache_dir is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return None
    home = Path(folder or named or user_cache() / "shrinx" / "programs").expanduser()
    place = home / _processor()
    try:
        place.mkdir(parents=True, exist_ok=True)
        trim(place, LARGEST_BYTES)
    except OSError:
        return None
    if not os.access(place, os.W_OK):
        return None
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST_SECONDS)
    reset_cache()  # JAX looks for a folder once, at the first program; there may have been one.
    return place


def trim(place: Path, largest: int) -> None:
    """Remove the oldest programs until the rest have at most `largest` bytes. No other file is touched."""
    programs = [(path, path.stat()) for path in place.glob("*-cache")]
    total = sum(status.st_size for _, status in programs)
    for path, status in sorted(programs, key=lambda program: program[1].st_mtime):
        if total <= largest:
            return
        path.unlink(missing_ok=True)
        total -= status.st_size


def _processor() -> str:
    """A name for this kind of processor: machines that share a home directory need not run each other's code."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(f"{platform.machine()} {platform.processor()} {flags}".encode()).hexdigest()[:12]
