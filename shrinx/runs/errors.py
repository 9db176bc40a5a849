"""What goes wrong with runs and is the user's to mend."""


class UserError(Exception):
    """One sentence that says what is wrong and what to do; the command line prints it without a traceback."""
