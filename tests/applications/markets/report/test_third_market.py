"""A market that report/ has never heard of gets its page from what its kernel declares."""

from pathlib import Path

import numpy as np
import pytest

import slipstream
from slipstream.core.errors import KernelError
from slipstream.markets.backtest_spec import SymbolBacktestSpec
from slipstream.report.inputs import BUY_AND_HOLD, ORACLE, RunEvaluation
from slipstream.report.run_evaluation import add_baselines, evaluate_run
from slipstream.report.run_page import build_page
from slipstream.training.environments.factory import resolve_environment

FILE = Path(__file__).parents[2] / "samples/third_market.py"
REPORT = Path(__file__).parents[4] / "src/slipstream/report"
CAPITAL = 10_000.0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return slipstream.train(
        str(FILE),
        out=tmp_path_factory.mktemp("third") / "run",
        overrides={"agent.n_steps": 32, "agent.net_arch": [8]},
        num_envs=2,
        total_timesteps=512,
        report=False,
        log=lambda sentence: None,
    )


@pytest.fixture(scope="module")
def found(run):
    return evaluate_run(run, count=False)


@pytest.mark.slow
def test_it_has_the_page_of_a_market(found):
    page = build_page(found)
    titles = [section.title for section in page.sections]
    assert "Against baselines and other costs" in titles
    assert "Sharpe" in " ".join(page.sentences)
    assert found.market.account_currency == "EUR" and found.market.symbols == ("INDEX",)


@pytest.mark.slow
def test_its_baselines_run_through_its_own_rules(found):
    environment = resolve_environment(str(FILE), {})
    index = environment.loaded.data.index
    (p,) = environment.loaded.params["test"]
    held = found.baselines["test"].tracks[BUY_AND_HOLD][0]
    end = CAPITAL + index[p.end] - index[p.begin] - p.fee
    assert held.trace["equity"].ravel()[-1] == pytest.approx(end)
    best = found.baselines["test"].tracks[ORACLE][0]
    assert best.trace["equity"].ravel()[-1] > end
    free, *_, dear = [after for _, after in found.stress.multiples]
    assert free >= dear


@pytest.mark.slow
def test_without_its_declaration_it_is_shown_like_a_game(found, tmp_path):
    text = FILE.read_text()
    path = tmp_path / "silent_market.py"
    path.write_text(text[: text.index("def backtest_spec")])
    silent = resolve_environment(str(path), {})
    assert silent.kernel.hook("backtest_spec") is None and silent.spec.market is not None
    shown = add_baselines(
        silent, RunEvaluation("silent", {"test": found.tracks["test"]}), backend="serial"
    )
    assert shown.market is None and len(shown.random_policy) == 100
    assert build_page(shown).title == "silent"


def test_a_declaration_holds_what_the_pass_can_trade_at():
    environment = resolve_environment(str(FILE), {})
    declared = environment.kernel.hook("backtest_spec")(
        environment.loaded.params["test"][0], environment.loaded.data
    )
    assert isinstance(declared, SymbolBacktestSpec)
    n = declared.last - declared.first
    assert len(declared.mid) == len(declared.rate) == len(declared.cost) == n + 1
    assert np.all(np.diff(declared.time) > 0)


def test_reports_name_no_environment():
    for path in REPORT.rglob("*.py"):
        assert "slipstream.kernels.classic" not in path.read_text(), path


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('            Metric("fills", "count"),\n', "lacks the metric fills"),
        ('"equity", ', "lacks the trace equity"),
    ],
)
def test_a_market_that_hides_its_account_is_refused(tmp_path, line, said):
    text = FILE.read_text()
    path = tmp_path / "hidden_market.py"
    where = text.index("def spec")
    path.write_text(text[:where] + text[where:].replace(line, "", 1))
    with pytest.raises(KernelError, match=said) as caught:
        resolve_environment(str(path), {})
    assert str(path) in str(caught.value) and "name it in EnvSpec(" in str(caught.value)
