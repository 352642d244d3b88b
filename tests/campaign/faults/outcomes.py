"""What may become of a scenario whose calls fail, and how calls can."""

from __future__ import annotations

import json
import re
from pathlib import Path

from faults.shim import run

SESSIONS = ("sessions", "reopening")
"""What needs the plugin for onnxruntime: `test_sessions.py` has it."""

ALLOWED = {
    "saving": re.compile(
        r"(done; the new one|a clear error; the (old|new) one|MemoryError; the old one)"
        r"(, leftovers until the next save)?"
    ),
    "filling": re.compile(r"(done|a clear error|MemoryError); right, and cached again"),
    "reading": re.compile(r"(done|a clear error|MemoryError); right, and cached again"),
    "compiling": re.compile(r"(done|a clear error|MemoryError); right again"),
    "starting": re.compile("(done|a clear error); right again"),
    "measuring": re.compile("(done|MemoryError); whole"),
    "calibrating": re.compile("(done|MemoryError); whole"),
    # Protobuf does not say whether a file is none of its own, or there was no memory to read it.
    "sessions": re.compile(
        r"(done|a clear error|MemoryError|InvalidProtobuf: .*); right, and kept again"
    ),
    "reopening": re.compile(r"(done|a clear error|MemoryError); right, and kept again"),
}
"""What may become of a child, and of the files that it leaves."""

KILLED = {
    "saving": re.compile("died of signal 9; the (old|new) one, leftovers until the next save"),
    "filling": re.compile("died of signal 9; right, and cached again"),
    "reading": re.compile("died of signal 9; right, and cached again"),
    "measuring": re.compile("died of signal 9; whole"),
    "calibrating": re.compile("died of signal 9; whole"),
    "sessions": re.compile("died of signal 9; right, and kept again"),
    "reopening": re.compile("died of signal 9; right, and kept again"),
}
"""The same where the call kills it."""

ERRORS = {
    "write": ("ENOSPC", "EIO", "EINTR", "short", "kill"),
    "pwrite": ("ENOSPC", "EIO", "EINTR", "short", "kill"),
    "fsync": ("ENOSPC", "EIO", "EINTR", "kill"),
    "rename": ("ENOSPC", "EIO", "EACCES", "kill"),
    "mmap": ("ENOMEM", "EIO"),
    "open": ("ENOSPC", "EIO", "EINTR"),
    "ftruncate": ("ENOSPC", "EIO", "EINTR"),
    "malloc": ("ENOMEM",),
    "read": ("EIO", "EINTR", "short"),
    "pread": ("EIO", "EINTR", "short"),
    "mkdir": ("ENOSPC", "EACCES"),
    "unlink": ("EIO", "EACCES"),
    "link": ("EIO", "EACCES", "kill"),
    "lock": ("ENOLCK", "EINTR"),
    "close": ("EIO", "EINTR"),
    "stat": ("EIO", "EACCES"),
    "readdir": ("EIO",),
    "utime": ("EIO", "EACCES"),
    "lseek": ("EIO",),
    "chmod": ("EACCES",),
    "rmdir": ("EACCES",),
    "clock": ("ahead", "back"),
    "own": ("ENOMEM",),
    "thread": ("EAGAIN",),
}


def check(library: Path, folder: Path, scenario: str, call: str, error: str) -> int:
    """Fail each call of a scenario in turn; return how many there were."""
    done = run(library, scenario, call, error, str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    print(scenario, call, error, found)
    allowed = (KILLED if error == "kill" else ALLOWED)[scenario]
    wrong = [text for text in found["outcomes"] if not allowed.fullmatch(text)]
    assert wrong == []
    tries: int = found["tries"]
    return tries
