"""What a program asks of the system about files, recorded with strace and read back."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from disk import Call, UnknownCallError

MISSING = (
    "strace is needed, which records a program's system calls: install Debian's package (apt-get "
    "install strace), and allow ptrace in a container (docker run --cap-add SYS_PTRACE)."
)
_KNOWN = (
    *("open", "openat", "creat", "write", "writev", "pwrite64", "pwritev", "ftruncate", "truncate"),
    *("fsync", "fdatasync", "rename", "renameat", "renameat2", "link", "linkat", "unlink"),
    *("unlinkat", "mkdir", "mkdirat", "rmdir", "mmap", "chdir"),
)
_UNKNOWN = (  # below the root they end the test: what they do to the disk is not in the model
    *("openat2", "pwritev2", "sendfile", "copy_file_range", "splice", "fallocate", "mknod"),
    *("mknodat", "symlink", "symlinkat", "sync_file_range", "fchdir", "io_uring_setup"),
)
_LINE = re.compile(r"(\d+) +(?:<\.\.\. )?(\w+)(?:\(| resumed>)(.*)")
_ENDED = re.compile(r"(.*)\) += (-?\d+|0x[0-9a-f]+)(?:<([^>]*)>)?")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_HANDLE = re.compile(r"(AT_FDCWD|\d+)<((?:\\x[0-9a-f]{2})*)>(\(deleted\))?")


_EITHER = re.compile(
    r'(?:AT_FDCWD|\d+)<(?P<folder>(?:\\x[0-9a-f]{2})*)>|"(?P<text>(?:\\x[0-9a-f]{2})*)"'
)


def available() -> bool:
    """Whether programs can be watched here."""
    found = shutil.which("strace")
    return found is not None and not subprocess.run([found, "-o", os.devnull, "true"]).returncode


def record(
    command: Sequence[str], log: Path, cwd: Path, variables: Mapping[str, str] | None = None
) -> Iterator[Call]:
    """Runs a command to its end, and yields what it and its children asked, in order.

    Args:
        command: and its arguments.
        log: file for what strace writes.
        cwd: where it runs.
        variables: of its environment, beside those of this process.
    """
    names = ",".join(f"?{name}" for name in (*_KNOWN, *_UNKNOWN))
    plain = {"PYTHONDONTWRITEBYTECODE": "1"}  # of the program's own files there are calls enough
    watch = ["strace", "-f", "-y", "-xx", "-s", str(2**28), "--seccomp-bpf", "-o", str(log)]
    done = subprocess.run(
        [*watch, "-e", "signal=none", "-e", f"trace={names}", "--", *command],
        cwd=cwd,
        env={**os.environ, **plain, **(variables or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return read(log, str(cwd))


def read(log: Path, cwd: str) -> Iterator[Call]:
    """Calls of a log, each where it returned; those that failed are left out.

    Args:
        log: that strace wrote.
        cwd: where the program began.
    """
    begun = dict[str, str]()  # by thread: arguments of a call in which others were at work
    opened = dict[tuple[str, str], str]()  # by thread and descriptor: flags of the last `open`
    with log.open() as lines:
        for line in lines:
            found = _LINE.match(line)
            if found is None:  # how a process ended
                continue
            thread, name, rest = found.groups()
            if rest.endswith("<unfinished ...>"):
                begun[thread] = rest.removesuffix("<unfinished ...>")
                continue
            ended = _ENDED.fullmatch((begun.pop(thread, "") + rest).split(" (", 1)[0].rstrip())
            if ended is None or ended[2].startswith("-"):
                continue
            arguments, value, path = ended.groups()
            if name in ("open", "openat", "creat"):
                flags = "O_WRONLY|O_CREAT|O_TRUNC" if name == "creat" else arguments
                opened[thread, value] = flags
                yield Call("open", _plain(path).decode(), flags=_outside_texts(flags))
            elif name == "chdir":  # who is where is not kept: from here on paths must be absolute
                cwd = cwd if cwd and _paths(arguments, cwd) == [cwd] else ""
            else:
                yield from _calls(name, arguments, int(value, 0), cwd, thread, opened)


def _calls(
    name: str,
    arguments: str,
    value: int,
    cwd: str,
    thread: str,
    opened: Mapping[tuple[str, str], str],
) -> Iterator[Call]:
    handles = _HANDLE.findall(arguments)
    last = arguments.rpartition(", ")[2]
    if name in ("write", "writev", "pwrite64", "pwritev", "fsync", "fdatasync", "ftruncate"):
        _, path, deleted = handles[0]
        if deleted or not path:
            return
        own = _plain(path).decode()
        if name in ("fsync", "fdatasync"):
            yield Call("sync", own)
        elif name == "ftruncate":
            yield Call("truncate", own, place=int(last))
        else:
            texts = _TEXT.findall(arguments)
            assert not any(cut for _, cut in texts), "strace left bytes out"
            data = b"".join(_plain(text) for text, _ in texts)[:value]
            yield Call("write", own, data=data, place=int(last) if name[0] == "p" else None)
    elif name == "mmap":
        if handles and "MAP_SHARED" in arguments:
            number, path, _ = handles[0]
            read_only = "O_RDONLY" in opened.get((thread, number), "")
            flags = "" if read_only and "PROT_WRITE" not in arguments else "PROT_WRITE"
            yield Call("map", _plain(path).decode(), flags=flags)
    elif name == "truncate":
        yield Call("truncate", _paths(arguments, cwd)[0], place=int(last))
    elif name in _UNKNOWN:
        for path in (*_paths(arguments, cwd), *(_plain(one).decode() for _, one, _ in handles)):
            yield Call(f"{name} (not known)", path)
    else:
        what = "rmdir" if "AT_REMOVEDIR" in arguments else name.rstrip("2").removesuffix("at")
        if "RENAME_" in _outside_texts(arguments).replace("RENAME_NOREPLACE", ""):
            raise UnknownCallError(arguments)
        yield Call(what, *_paths(arguments, cwd))


def _paths(arguments: str, cwd: str) -> list[str]:
    """Paths that a call names, each below the folder whose descriptor stands before it."""
    found, folder = [], cwd
    for one in _EITHER.finditer(arguments):
        if one["folder"] is not None:
            folder = _plain(one["folder"]).decode()
        else:
            text = _plain(one["text"]).decode()
            if not text.startswith("/") and not folder:
                raise UnknownCallError(f"{text} in a working folder that is not known")
            found.append(os.path.normpath(os.path.join(folder, text)))
            folder = cwd
    return found


def _plain(text: str) -> bytes:
    r"""``\x61\x62`` -> b"ab"."""
    return bytes.fromhex(text.replace("\\x", ""))


def _outside_texts(arguments: str) -> str:
    return _TEXT.sub("", _HANDLE.sub("", arguments))
