"""What the system, a file or a reply did that no command expected, as an error of the tree.

Anything else that reaches the top is a fault of kvops, and keeps its traceback.
"""

from __future__ import annotations

import errno
import sys
import traceback

from kvops.errors import KvopsError

_PATH_IS_WRONG = frozenset((
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP,
    errno.ENAMETOOLONG,
))  # fmt: skip


class PathRefused(KvopsError):
    """A file or folder is not what it has to be, or may not be used: as wrong as a setting."""

    code = "path"
    exit_code = 2
    default_hint = "check what is there and who may use it; KVOPS_HOME moves all folders of kvops"


class SystemFailed(KvopsError):
    code = "system"
    default_hint = "free what has run out, or see the system's log"


class InputRefused(KvopsError):
    code = "input"
    default_hint = "check what it was given; with PYTHONDEVMODE=1 it shows where it was read"


def outside(error: Exception) -> KvopsError:
    if sys.flags.dev_mode:
        traceback.print_exception(error)
    if not isinstance(error, OSError):
        return InputRefused(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    what = error.strerror or str(error) or type(error).__name__
    files = [str(file) for file in (error.filename, error.filename2) if file is not None]
    kind = PathRefused if error.errno in _PATH_IS_WRONG else SystemFailed
    return kind(": ".join([" -> ".join(files), what]) if files else what)
