"""The notebook runs as it stands, says nothing beside the point, and keeps what was interrupted."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[1]


def client(notebook: Any, folder: Path) -> Any:
    return nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )


def outputs(cell: Any) -> list[Any]:
    """All outputs, each whole: pieces of a stream are joined by their name."""
    return [out for out in cell.outputs if out.output_type != "stream" or out.text.strip()]


def text_of(cell: Any) -> str:
    """What the cell printed."""
    return "".join(out.text for out in cell.outputs if out.output_type == "stream")


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_notebook_runs_and_draws_progress_and_curves(tmp_path: Path, quiet: None) -> None:
    notebook = nbformat.read(ROOT / "examples/notebook.ipynb", as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")]  # none is kept with it
    client(notebook, tmp_path).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in cells:
        assert not [out for out in cell.outputs if out.get("name") == "stderr"], outputs(cell)
        assert not [out for out in cell.outputs if out.output_type == "error"], outputs(cell)
    drawn = [out for out in cells[0].outputs if out.output_type == "display_data"]
    assert len(drawn) == 1  # one place, drawn again
    page = drawn[0].data["text/html"]
    assert "training 100 %, 120,832 of 120,832 steps" in page
    assert page.count("<polyline") == 2 and "validation score" in page
    said = text_of(cells[0])
    assert re.search(r"Report: .*runs/notebook/report\.html", said), said
    assert "validation score" not in said  # its curve tells that
    assert (tmp_path / "runs/notebook/report.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_stop_button_keeps_a_checkpoint(tmp_path: Path, quiet: None) -> None:
    code = 'slipstream.train("cartpole", total_timesteps=50_000_000, out="stopped", report=False)'
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_code_cell("import slipstream"),
        nbformat.v4.new_code_cell(code),
        nbformat.v4.new_code_cell(
            'slipstream.training.runs.run.Run.open("stopped").load_checkpoint()[1]["steps"]'
        ),
    ]
    running = client(notebook, tmp_path)

    def press() -> None:
        while not (tmp_path / "stopped/metrics.csv").is_file():
            time.sleep(0.2)
        time.sleep(1.0)
        asyncio.run(running.km.interrupt_kernel())

    threading.Thread(target=press, daemon=True).start()
    with running.setup_kernel():
        running.execute_cell(notebook.cells[0], 0)
        with pytest.raises(nbclient.exceptions.CellExecutionError):
            running.execute_cell(notebook.cells[1], 1)
        running.execute_cell(notebook.cells[2], 2)
    (error,) = [out for out in notebook.cells[1].outputs if out.output_type == "error"]
    assert error.ename == "Interrupted"
    assert error.traceback == [error.evalue]  # the sentence alone
    assert re.search(r"after a checkpoint\. Resume with: slipstream resume .*stopped", error.evalue)
    (last,) = outputs(notebook.cells[2])
    assert int(last.data["text/plain"]) > 0
