"""Malformed calls: options with wrong values, targets and folders that are something else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from malformed import Case, writes

LONG = "x" * 5000
NUMBERS = ("text", "-1", "0", "nan", "inf", "1e400", "true", "[1]", "{}", "", "1.5", LONG)


def options() -> Iterator[Case]:
    """Every option of `train` and `tune` with values that it cannot have."""
    train = ("train", "cartpole", "--no-report")
    small = ("--total-timesteps", "256")
    for option in ("--num-envs", "--members", "--total-timesteps"):
        for value in NUMBERS:
            yield Case(f"train {option} {value[:20]!r}", (*train, *small, option, value))
    for value in ("text", "-1", "nan", "1.5", "true", "[1]", "1e30", str(2**63), LONG):
        yield Case(f"train --seed {value[:20]!r}", (*train, *small, "--seed", value))
    for value in ("cuda", "cuda:99", "tpu", "", "mps", "0", LONG):
        yield Case(f"train --device {value[:20]!r}", (*train, *small, "--device", value))
    for value in ("mlflow", "", LONG):
        yield Case(f"train --track {value[:20]!r}", (*train, *small, "--track", value))
    for value in ("x", "=", "=1", "agent", "agent=1", "agent.", ".epochs=1", "a.b.c.d=1", LONG):
        yield Case(f"train --set {value[:20]!r}", (*train, *small, "--set", value))
    for value in ("agent.n_epochs=", "agent.n_epochs=[", "agent.n_epochs=!!python/name:os.system"):
        yield Case(f"train --set {value!r}", (*train, *small, "--set", value))
    tune = ("tune", "cartpole", "--no-report", "--total-timesteps", "2048", "--study-name", "s")
    for option, values in {
        "--n-trials": ("0", "-1", "text", "1.5", "1e3", "nan"),
        "--workers": ("-1", "text", "1.5"),
        "--group-size": ("0", "-3", "text"),
        "--hours": ("text", "-1", "nan", "0"),
        "--time-budget": ("soon", "-1h", "0", "nan", "", "1.2.3d"),
        "--seed": ("-1", "text", str(2**63)),
        "--n-envs": ("0", "-1", "text"),
        "--timeframe": ("5m", "soon", "-5m", ""),
        "--space": ("cappucino", "no/such.yaml", "", "/dev/null", LONG),
        "--from-study": ("nobody", "", "/dev/null", LONG),
        "--storage": ("mysql://x", "sqlite:///no/such/folder/x.db", "postgresql://", ":", "x"),
        "--device": ("cuda", "tpu"),
        "--data-dir": ("no/such/folder", "/dev/null", ""),
        "--cluster": ("somewhere", ":", "host:port", ""),
        "--max-workers": ("3", "text"),
        "--gpu-share": ("0.5", "text"),
    }.items():
        for value in values:
            yield Case(f"tune {option} {value!r}", (*tune, option, value))
    for name in ("", ".", "..", "a\x1b[31m", LONG, "-x", "a b\n"):
        argv = ("tune", "cartpole", "--n-trials", "1", f"--study-name={name}")
        yield Case(f"tune --study-name {name[:20]!r}", argv)
    for command in ("status", "report", "best", "export", "stop"):
        for name in ("absent", "/dev/null", "", LONG):
            yield Case(f"study {command} {name[:20]!r}", ("study", command, name))
    for command in ("status", "watch", "stop", "log", "resume"):
        for name in ("absent", "/dev/null", "", LONG):
            yield Case(f"{command} {name[:20]!r}", (command, name))
    for name in ("absent", "/dev/null", LONG, "a\x1b[31m"):
        yield Case(f"dash {name[:20]!r}", ("dash", "--", name))
    for option, value in (("--port", "0"), ("--port", "70000"), ("--listen", "no such host")):
        yield Case(f"dash {option} {value!r}", ("dash", option, value))
    for value in ("0", "-1", "text", "nan", "1e30"):
        argv = ("resume", "absent", "--num-envs", value)
        yield Case(f"resume --num-envs {value!r}", argv)
    for command in ("stop", "retry"):
        for name in ("absent", "/dev/null", "", LONG, "0", "99999999999999999999", "-1"):
            yield Case(f"jobs {command} {name[:20]!r}", ("jobs", command, "--", name))
    for words in (("list",), ("train",), ("train", "cartpol"), ("tune", "cartpole", "--nope")):
        yield Case(f"jobs add {' '.join(words)}", ("jobs", "add", "--", *words))
    for option in ("--cores", "--memory"):
        for value in ("-1", "text", "nan", "inf", "99999", ""):
            argv = ("jobs", "add", option, value, "--", "train", "cartpole")
            yield Case(f"jobs add {option} {value!r}", argv)
    for more in (
        ("--cores", "0"),
        ("--cores", "99999"),
        ("--log", "x"),
        ("--replace", "--out", "/"),
    ):
        yield Case(f"train {' '.join(more)}", (*train, *more))
    for words in (("evaluate", "absent"), ("autotune", "cartpole"), ("jobs", "run")):
        for value in ("0", "99999", "text"):
            yield Case(f"{words[0]} --cores {value}", (*words, "--cores", value))
    for name in ("absent", "/dev/null", "", ".", LONG, "a\x1b[31m"):
        yield Case(f"paper status {name[:20]!r}", ("paper", "status", "--", name))
        yield Case(
            f"paper start {name[:20]!r}", ("paper", "start", "--feed", "replay:.", "--", name)
        )
        yield Case(f"paper report {name[:20]!r}", ("paper", "report", "--", name))
        yield Case(f"paper stop {name[:20]!r}", ("paper", "stop", "--", name))
        yield Case(f"rollback {name[:20]!r}", ("rollback", "--", name))
        yield Case(f"deploy {name[:20]!r}", ("deploy", "--name", "x", "--", name))
        yield Case(f"deploy --name {name[:20]!r}", ("deploy", "absent", f"--name={name}"))
    for words in (
        (),
        ("absent", "--run-once"),
        ("absent", "--watch", "x*"),
        ("--watch", "x*", "--force", "pbo", "--reason", "none"),
        ("--watch", "x*", "--trust"),
    ):
        yield Case(f"deploy {' '.join(words)}", ("deploy", *words, "--name", "x"))
    for option in ("--background", "--log=x"):
        yield Case(f"paper start {option}", ("paper", "start", "absent", option))
    for option in ("--max-gap", "--grace"):
        for value in ("-1", "text", ""):
            yield Case(
                f"paper start {option} {value!r}", ("paper", "start", "x", f"{option}={value}")
            )
    for more in (
        *(("--max-order", word) for word in ("", "much", "nan", "-1")),
        ("--max-data-age", "-1"),
        *(("--broker", word) for word in ("", "alpaca", LONG)),
        *(("--feed", word) for word in ("ccxt:", "ccxt:absent", "ccxt:../x")),
        *(("--flat",), ("--max-order",)),
    ):
        yield Case(f"paper start {more}"[:60], ("paper", "start", "x", "--feed", "replay:.", *more))
    yield Case("no such command", ("trian", "cartpole"))
    yield Case("no such option", (*train, "--total-step", "3"))
    yield Case("an option without value", (*train, "--seed"))
    yield Case("two targets", ("train", "cartpole", "pendulum"))
    yield Case("init of nothing", ("init", "cartpol"))
    yield Case("init of a market without folder", ("init", "forex"))
    yield Case("init of a game with a folder", ("init", "cartpole", "{folder}"))
    yield Case("doctor of nothing", ("doctor", "cartpol"))
    for word in ("", "hokey", "demo.yaml", LONG):
        yield Case(f"demo of {word!r}"[:60], ("demo", word))
    for value in ("0", "-1", "many", "1.5", ""):
        words = ("evaluate", "{folder}/none", "--video", "a.gif", f"--video-episodes={value}")
        yield Case(f"evaluate --video-episodes {value!r}", words)


def _special(folder: Path) -> None:
    """What a path may point at that is not an ordinary file."""
    os.mkfifo(folder / "fifo.yaml")
    os.mkfifo(folder / "fifo.py")
    (folder / "zero.yaml").symlink_to("/dev/zero")
    (folder / "zero.py").symlink_to("/dev/zero")
    (folder / "full.yaml").symlink_to("/dev/full")
    (folder / "loop.yaml").symlink_to("loop.yaml")
    (folder / "gone.yaml").symlink_to("nowhere.yaml")
    (folder / "folder.yaml").mkdir()
    (folder / "folder.py").mkdir()
    (folder / "file").write_text("a file\n")
    (folder / "huge.yaml").touch()
    os.truncate(folder / "huge.yaml", 4 << 30)


def targets() -> Iterator[Case]:
    names = ("fifo.yaml", "fifo.py", "zero.yaml", "zero.py", "full.yaml", "loop.yaml", "gone.yaml")
    for name in (*names, "folder.yaml", "folder.py", "file", "huge.yaml", "absent.yaml", ""):
        path = f"{{folder}}/{name}"
        yield Case(f"train a target: {name!r}", ("train", path, "--no-report"), _special)
        if name.endswith((".yaml", "file")):
            yield Case(f"resume: {name!r}", ("resume", path), _special)
            yield Case(f"evaluate: {name!r}", ("evaluate", path), _special)
            yield Case(f"policy show: {name!r}", ("policy", "show", path), _special)
            yield Case(f"card: {name!r}", ("model-card", path), _special)
            export = ("export", path, "--onnx", "{folder}/a.onnx", "--opset", "-1")
            yield Case(f"export: {name!r}", export, _special)
            yield Case(f"init forex on {name!r}", ("init", "forex", path), _special)
            yield Case(f"data check of {name!r}", ("data", "check", path), _special)
    for name in ("", " ", ".", "/", "gym:", "gym:No-v0", "gym:a:b:c", "gym:os:system", "gym: "):
        yield Case(f"train {name!r}", ("train", name, "--no-report"))
    overlong = (LONG, LONG + ".yaml", LONG + ".py", "gym:" + LONG)
    for name in (*overlong, "a\nb", "\x1b[2J", "../cartpole"):
        yield Case(f"train {name[:12]!r}{name[-5:]!r}", ("train", name, "--no-report"))


def folders() -> Iterator[Case]:
    """Run directories that cannot be made."""
    train = ("train", "cartpole", "--no-report", "--total-timesteps", "256", "--out")
    for name in ("/dev/null", "/dev/null/run", "/proc/run", "{folder}/file", "{folder}/file/run"):
        yield Case(f"train --out {name}", (*train, name), _special)
    yield Case("train --out a full folder", (*train, "{folder}"), writes("precious.txt", "keep"))
    yield Case("train --out an overlong name", (*train, "{folder}/" + LONG))
    yield Case("train --out nothing", (*train, ""))
    for name in ("/proc/planted", "/dev/null", "{folder}/file", "{folder}/" + LONG):
        shown = name[:20]
        yield Case(f"synthetic-forex into {shown}", ("data", "synthetic-forex", name), _special)
        yield Case(f"synthetic-crypto into {shown}", ("data", "synthetic-crypto", name), _special)
        argv = ("data", "import-finrl", name, "{folder}/prices")
        yield Case(f"import-finrl of {shown}", argv, _special)
    for content in (b"", b"cos\nsystem\n(S'true'\ntR.", b"\x80\x05]", b"\x80\x05N."):
        argv = ("data", "import-finrl", "{folder}", "{folder}/prices")
        yield Case(f"import-finrl of {content!r}", argv, writes("price_array", content))
    for option in (("--bars", "0"), ("--bars", "-5"), ("--bars", "text"), ("--seed", "-1")):
        argv = ("data", "synthetic-forex", "{folder}/p", *option)
        yield Case(f"synthetic-forex {' '.join(option)}", argv)
