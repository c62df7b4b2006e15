"""What keeps the local stack from standing up."""


class StackError(RuntimeError):
    """A server of the local stack cannot run; the message names what is missing and the remedy."""
