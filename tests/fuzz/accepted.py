"""Input that looks malformed and may be accepted, with the reason.

A pattern stands for the names of cases; a case that it matches may end with exit code 0, too.
"""

from __future__ import annotations

import re

REASONS: dict[str, str] = {
    r"train --out nothing": "an empty name is the folder one is in, as everywhere",
    r"config \S+: training\.num_envs = 7 .*": "where it stands for itself (`auto`), seven copies",
    r"config \S+: evaluation\.(episodes|max_steps) = 7 .*": (
        "where it stands for itself (`auto`), seven episodes, or episodes of seven steps"
    ),
    r"config \S+: training\.(workers|shards) = 7 .*": "fewer are used where there is less to do",
    r"config \S+: training\.hang_seconds = 1e\+308 .*": "nothing is ever given up for hanging",
    r"init of prices: .*": "init describes what it finds; loading judges the prices",
    r"environment: EndlessActions": "agents act in unbounded boxes",
    r"(complete|stopped|study): \.lock .*": "a lock is held by the system; its file says nothing",
    r"(complete|study): figures/.*": "pictures are drawn, never read",
    r"(complete|stopped|study): (status\.json|events\.jsonl|log\.txt|live/members\.jsonl) .*": (
        "what other processes are told decides nothing, and is written anew"
    ),
    r"stopped: (best|checkpoints)/.*: status": "it reads the status, and whether there is a result",
    r"stopped: (config\.yaml|provenance\.json|(metrics|evaluations)\.csv) .*: status": (
        "it reads the status, and whether there is a result"
    ),
    r"complete: checkpoints/.*: evaluate": "an evaluation reads the best policies alone",
    r"complete: best/.*\.previous/.*": "it is read where the best is damaged",
    r"complete: best/.*: evaluate": "the policy before takes its place, and a line says so",
    r"complete: (metrics|evaluations)\.csv (gone|empty|cut in half|nested): evaluate": (
        "rows that a kill left unfinished are left out; without rows there are no curves"
    ),
    r"complete: (metrics|evaluations)\.csv bits flipped: evaluate": (
        "tables are for people and carry no hash: a number that is still one is believed"
    ),
    r"complete: result\.json gone: evaluate": "a run that was stopped has none yet",
    r"complete: provenance\.json (gone|a mapping): evaluate": "nothing is known of its origin",
    r"stopped: provenance\.json (gone|a mapping): resume .*": (
        "a run goes on without what it said, as the refusal of a damaged one offers"
    ),
    r"stopped: best/.*: resume .*": "a damaged best policy gives way to the one before or the next",
    r"stopped: (metrics|evaluations)\.csv .*: resume .*": (
        "the table is moved aside and kept, and a line says so"
    ),
    r"study: machine\.csv .*": "what a study took of its machine is drawn, and decides nothing",
    r"study: study\.db.*": "the mirror for Optuna's tools decides nothing",
    r"study: ledger\.db-(shm|wal) .*": "SQLite makes them anew",
    r"study: ledger\.db bits flipped: study (status|best|report)": (
        "SQLite has no hash of its pages: what is not read is not missed"
    ),
    r"study: (weights|policy)/.*": "what these commands print does not need weights",
    r"study: provenance\.json .*: (study (status|best)|resume)": "only the report reads it",
    r"study: provenance\.json (gone|a mapping): study report": "nothing is known of its origin",
    r"study: result\.json gone: study (status|best)": "a study that goes on has none yet",
    r"study: (study\.yaml|ledger\.db) (?!gone|a folder|a FIFO).*: resume": (
        "a complete study is left as it is: its result says that it is"
    ),
}


def may_be_accepted(name: str) -> bool:
    """Whether a case of this name has a reason to be accepted."""
    return any(re.fullmatch(pattern, name) for pattern in REASONS)
