"""The error for a file that cannot be used."""


class FitInputError(ValueError):
    """A file that cannot be read or holds too little; the message names file, line or field, and the fix."""
