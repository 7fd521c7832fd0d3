"""The one exception for what a person can put right."""


class UserError(Exception):
    """A mistake in the input or the settings: the command line prints it as one line and exits with code 2.

    The message says what is wrong and what to do about it.
    """


def first_line(error: BaseException) -> str:
    """What an error of another library says, without its page of advice."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
