"""Limits of containers, in both versions of Linux's control groups."""

from slipstream.core import capacity
from slipstream.core.capacity import cpu_limit, memory_limit


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


def test_usable_cores_keep_to_the_containers_share(monkeypatch):
    for limit in (0.3, 1.9):
        monkeypatch.setattr(capacity, "cpu_limit", lambda limit=limit: limit)
        assert capacity.usable_cores() == 1
