"""What goes wrong and is the author's to mend."""


class SummaryError(Exception):
    """One sentence that says what is wrong and what to do."""
