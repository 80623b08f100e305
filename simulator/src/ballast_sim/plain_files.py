"""Files that are read more than once, or by several processes: pipes and devices will not do."""

import errno
from pathlib import Path


def require_plain(path: Path) -> None:
    """Raises OSError, saying so, for what is neither a plain file nor a folder; what does not exist is left to open."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is a pipe or a device, and is read more than once; write it to a file first")
