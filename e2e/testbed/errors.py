"""The one error that the command line shows without a traceback."""


class TestbedError(Exception):
    """Something the user can act on; the message says what to do."""

    __test__ = False  # the name starts with Test, but pytest must not collect it
