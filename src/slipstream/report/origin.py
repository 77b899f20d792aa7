"""Where results come from, as lines of a report: label and text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def origin(
    facts: Mapping[str, Any], work: Mapping[str, str], config: str | None, data: str | None
) -> dict[str, str]:
    """Command, what was done, config, data, code, versions, machine; without the unknown.

    Args:
        facts: ``provenance.json`` of a run or a study.
        work: what was done: label and text.
        config, data: sha256.
    """
    git = (facts.get("git") or {}).get("slipstream") or {}
    versions, machine = facts.get("versions") or {}, facts.get("machine") or {}
    parts = (
        machine.get("processor"),
        f"{machine.get('cores')} cores",
        f"{machine.get('memory_gib')} GiB",
        *(card.get("name") for card in machine.get("gpus") or ()),
        machine.get("system"),
    )
    lines = {
        "Command": str(facts.get("command") or ""),
        "Started": str(facts.get("started") or ""),
        **work,
        "Config": f"sha256 {config}" if config else "",
        "Data": f"sha256 {data}" if data else "",
        "Commit": git.get("commit", "") + (", with local changes" if git.get("dirty") else ""),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        "Machine": ", ".join(str(part) for part in parts if part) if machine else "",
    }
    return {label: text for label, text in lines.items() if text}
