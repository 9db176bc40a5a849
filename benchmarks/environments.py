"""A virtual environment for each family of libraries, made when it is first needed."""

import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(".venv-bench")

# With the same JAX as shrinx, so that the ratio is not one of versions.
REQUIREMENTS = {
    "jaxopt": ("jaxopt==0.8.5", f"jax=={version('jax')}", f"jaxlib=={version('jaxlib')}", f"optax=={version('optax')}"),
    "torch": ("torch==2.13.0", "torchopt==0.7.3", "higher==0.2.1", "numpy"),
}


def python_of(environment: str, folder: Path = FOLDER) -> Path:
    """The interpreter of an environment; `shrinx` is the one that runs this."""
    if environment == "shrinx":
        return Path(sys.executable)
    home = folder / environment
    python, stamp = home / "bin" / "python", home / "installed"
    wanted = "\n".join(REQUIREMENTS[environment])
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"Installing {', '.join(REQUIREMENTS[environment])} …", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS[environment]], check=True)
        stamp.write_text(wanted)
    return python
