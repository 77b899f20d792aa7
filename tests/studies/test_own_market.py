"""A user's market in a study: rare states of its test passes are named, whoever steps it."""

from pathlib import Path

import pytest

from slipstream.core.errors import KernelError
from slipstream.studies.engine.passes import PassLoop, score
from slipstream.studies.engine.source import Place
from slipstream.studies.engine.stretch import policy_of

TOY = str(Path(__file__).with_name("toy_market.py"))
BROKEN = {
    "step": ("    s.held = wish\n", "    s.held = wish + d.prices[s.bar, 2 * s.bar]\n"),
    "observe": ("    out[1] = s.held\n", "    out[1] = s.held\n    out[s.bar] = 0.0\n"),
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("function", BROKEN)
def test_passes(engine, tmp_path, monkeypatch, function, fused):
    """Fused with the networks in one loop, and stepped one after another."""
    if not fused:
        monkeypatch.setattr(PassLoop, "fits", staticmethod(lambda env, policy: False))
    old, new = BROKEN[function]
    late = new.replace("\n    out[", "\n    if s.bar > p.first + 20:\n        out[")
    if function == "step":
        late = (
            "    s.held = wish\n    if s.bar > p.first + 20:\n"
            "        s.held = wish + d.prices[s.bar, 2 * s.bar]\n"
        )
    text = Path(TOY).read_text()
    assert old in text
    path = tmp_path / "own_market.py"
    path.write_text(text.replace(old, late))
    member = engine.member(0, env=str(path), fold=1)
    place = Place(member, engine.source().environment(member.config))
    with pytest.raises(KernelError) as error:
        score([place], policy_of([place], [None]))
    message = str(error.value)
    assert message.startswith(f"{path}:") and f"in `{function}`" in message, message
    assert "raised IndexError: index" in message and "\n" not in message
    text = path.read_text().splitlines()[int(message[len(str(path)) + 1 :].partition(":")[0]) - 1]
    assert "d.prices[s.bar, 2 * s.bar]" in text or "out[s.bar]" in text
