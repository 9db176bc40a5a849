import gc
import importlib.util
import os
import signal
from pathlib import Path

import jax
import pytest

# The tests spend their time compiling programs that run for milliseconds: without optimisations and by XLA's plain
# emitters in one piece, that takes a quarter of the time. XLA aborts on flags that it does not know (any more).
QUICK_TO_COMPILE = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
    *(["--xla_cpu_use_fusion_emitters=false"] if jax.__version_info__ < (0, 11) else []),
)
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *QUICK_TO_COMPILE])

# Tracing makes many objects that live; looking through them for cycles as often as usual takes a tenth of the time.
gc.set_threshold(50_000, 20, 20)

MOST_MAPS = 10_000

# Nothing outside the tests' own folders is read or written.
os.environ["SHRINX_CACHE"] = "off"

# Doctests are looked for in every file, also in this one, which PyTorch's tests share.
collect_ignore = [] if importlib.util.find_spec("torch") else ["torch_reference.py"]

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(autouse=True)
def few_programs():
    """Every compiled program holds memory, several gigabytes after a thousand tests, and memory maps, of which Linux
    grants a process 65,530: XLA aborts when they run out."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="module")
def relaxed():
    """For whole runs: types and ranks meet as they do for users."""
    # Not by context managers: these change the thread they are in only, and seeds run in threads of their own.
    before = jax.config.jax_numpy_dtype_promotion, jax.config.jax_numpy_rank_promotion
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    jax.config.update("jax_numpy_rank_promotion", "allow")
    yield
    jax.config.update("jax_numpy_dtype_promotion", before[0])
    jax.config.update("jax_numpy_rank_promotion", before[1])


@pytest.fixture
def interruptible():
    """Processes heed Ctrl-C, which those of a shell's background jobs are started to ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def prior():
    """A small network's, for tests of banks."""
    from bank_models import sinusoid_prior  # Not before pytest has the package's annotations checked.

    return sinusoid_prior(8)


@pytest.fixture
def bank(prior, tmp_path):
    """An empty one of its first layer."""
    from bank_models import SELECTED

    import shrinx as sx

    return sx.Bank.create(tmp_path / "bank", prior, SELECTED)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield request.param
