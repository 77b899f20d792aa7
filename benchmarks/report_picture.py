"""Takes a picture of a report's first screen: ``python -m benchmarks.report_picture REPORT PNG``.

`docs/figures/report.png` shows the report of `slipstream demo`. Requires the package playwright and
the program chromium.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from slipstream.core.errors import ConfigError, ResourceError

WIDTH, HEIGHT = 1_000, 932  # CSS pixels


def take_picture(report: Path, picture: Path, scheme: str = "light") -> None:
    """Write the top of a report as PNG.

    Args:
        report: `report.html` of a run or `study.html` of a study.
        picture: PNG file.
        scheme: color scheme, `light` or `dark`.

    Raises:
        ConfigError: there is no report.
        ResourceError: chromium is not installed.
    """
    from playwright.sync_api import sync_playwright

    if not report.is_file():
        raise ConfigError(f"{report} is not a file. Name the report.html of a run.")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if program is None:
        raise ResourceError("chromium was not found. Install it.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        page.goto(report.absolute().as_uri())
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    take_picture(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
