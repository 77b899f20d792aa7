"""Limits of containers, in both versions of Linux's control groups."""

from pathlib import Path

import psutil

import slipstream
from slipstream.core import capacity
from slipstream.core.capacity import cpu_limit, free_memory, memory_limit, total_memory


def write(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_version_2(tmp_path):
    assert cpu_limit(tmp_path) is None and memory_limit(tmp_path) is None
    write(tmp_path, cpu_DOT_max="150000 100000\n", memory_DOT_max="1048576\n")
    assert cpu_limit(tmp_path) == 1.5 and memory_limit(tmp_path) == 2**20
    write(tmp_path, cpu_DOT_max="max 100000\n", memory_DOT_max="max\n")
    assert cpu_limit(tmp_path) is None and memory_limit(tmp_path) is None


def test_version_1(tmp_path):
    write(tmp_path, cpu__cpu_DOT_cfs_quota_us="200000", cpu__cpu_DOT_cfs_period_us="100000",
          memory__memory_DOT_limit_in_bytes="4096")  # fmt: skip
    assert cpu_limit(tmp_path) == 2.0 and memory_limit(tmp_path) == 4096
    write(tmp_path, cpu__cpu_DOT_cfs_quota_us="-1",
          memory__memory_DOT_limit_in_bytes=str(2**63 - 4096))  # fmt: skip
    assert cpu_limit(tmp_path) is None and memory_limit(tmp_path) is None


def test_memory_is_the_containers(tmp_path):
    """8 MiB, of which 5 are taken and 2 of these are cached files."""
    there = psutil.virtual_memory().total
    assert total_memory(tmp_path) == there and 0 < free_memory(tmp_path) <= there
    stat = "anon 3145728\n{0}inactive_file 1048576\n{0}active_file 1048576\n"
    write(tmp_path, memory_DOT_max=str(8 * 2**20), memory_DOT_current=str(5 * 2**20),
          memory_DOT_stat=stat.format(""))  # fmt: skip
    assert (total_memory(tmp_path), free_memory(tmp_path)) == (8 * 2**20, 5 * 2**20)
    old = tmp_path / "old"
    old.mkdir()
    write(old, memory__memory_DOT_limit_in_bytes=str(8 * 2**20),
          memory__memory_DOT_usage_in_bytes=str(9 * 2**20),
          memory__memory_DOT_stat="inactive_file 7\n" + stat.format("total_"))  # fmt: skip
    assert (total_memory(old), free_memory(old)) == (8 * 2**20, 2**20)


def test_memory_is_asked_for_in_one_place():
    """What asks the system itself does not see the container's limit."""
    sources = Path(slipstream.__file__).parent.rglob("*.py")
    asking = {path.name for path in sources if "virtual_memory" in path.read_text()}
    assert asking == {"capacity.py"}


def test_usable_cores_keep_to_the_containers_share(monkeypatch):
    for limit in (0.3, 1.9):
        monkeypatch.setattr(capacity, "cpu_limit", lambda limit=limit: limit)
        assert capacity.usable_cores() == 1
