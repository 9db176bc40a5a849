"""The cases by name; each is made when it is asked for."""

from collections.abc import Callable

from ..case import Case
from . import (
    adapt_many,
    adapt_one,
    omniglot_maml,
    omniglot_reptile,
    serve,
    sinusoid_imaml,
    sinusoid_maml_5,
    sinusoid_maml_100,
    sinusoid_reptile,
)

CASES: dict[str, Callable[[], Case]] = {
    "sinusoid-maml-5": sinusoid_maml_5.make,
    "sinusoid-maml-100": sinusoid_maml_100.make,
    "sinusoid-imaml": sinusoid_imaml.make,
    "sinusoid-reptile": sinusoid_reptile.make,
    "omniglot-maml": omniglot_maml.make,
    "omniglot-reptile": omniglot_reptile.make,
    "adapt-1": adapt_one.make,
    "adapt-1000": adapt_many.make,
    "serve": serve.make,
}
