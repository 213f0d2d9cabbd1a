"""The one exception for input that cannot be used."""


class InputError(ValueError):
    """An argument is not allowed; the message names it, what was given and what is allowed.

    The command line prints the message as one line and exits with code 2.
    """
