"""Stands in for Ray's process: does what the owner's name of the work says."""

import os
import sys
import time
from multiprocessing.connection import Connection

pipe = Connection(int(sys.argv[1]))
options, work = pipe.recv()
mode = os.environ["RAY_AUTH_MODE"]
if work.owner == "hangs":
    time.sleep(60.0)
if work.owner == "crashes":
    os._exit(3)
if work.owner == "asks for a token" and mode == "disabled":
    pipe.send(("refused", "ResourceError", "It asks for a token."))
    sys.exit()
if work.owner == "is owned":
    pipe.send(("refused", "ConfigError", "Another process of this cluster works on it."))
    sys.exit()
pipe.send(("joined",))
pipe.send(("capacity", 2, f"2 cores and 0 cards (mode: {mode})"))
while True:
    name, *facts = pipe.recv()
    if name == "close":
        break
    if name == "share":
        pipe.send(("shared", "It is full." if work.owner == "is full" else ""))
        if work.owner == "dies":
            pipe.send(("arrived", 0, "a", "there", []))
    if name == "work" and work.owner == "dies":
        os._exit(1)
    if name in ("work", "leave", "detach"):
        pipe.send(("failed", 9, "told", f"{name} {facts[0]}", False))
