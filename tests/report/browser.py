"""A headless Chromium for the tests of pages; how to be without one is said once, here."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


def why_not() -> str | None:
    """What is missing for a browser; None if nothing is."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    missing += [] if importlib.util.find_spec("selenium") else ["selenium"]
    if not missing:
        return None
    return f"no {' and no '.join(missing)}: apt-get install chromium chromium-driver; pip install 'verl-grail[dev]'"


def require() -> None:
    """Skip the test without a browser, or fail it where VERL_GRAIL_CHROMIUM=required says that there is one."""
    import pytest

    if reason := why_not():
        (pytest.fail if os.environ.get("VERL_GRAIL_CHROMIUM") == "required" else pytest.skip)(reason)


@contextmanager
def chromium() -> Iterator[Any]:
    """A selenium driver on a profile of its own."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


def show(
    driver: Any, page: Path, width: int = 1280, height: int = 900, dark: bool = False, seconds: float = 90.0
) -> None:
    """Open a page of `verl-grail report` from its file and wait until it has drawn itself."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get(page.resolve().as_uri())
    end = time.monotonic() + seconds
    while (ready := driver.execute_script("return document.documentElement.dataset.ready")) is None:
        assert time.monotonic() < end, "the page did not get ready"
        time.sleep(0.02)
    assert ready == "yes", driver.execute_script("return document.querySelector('main').textContent.slice(0, 300)")
