"""What goes wrong with a bank and is the caller's to mend."""

from ..runs.errors import UserError


class BankError(UserError, ValueError):
    """One sentence that names the file or task and the way out."""


class DamagedError(BankError):
    """A file does not hold what was written to it."""
