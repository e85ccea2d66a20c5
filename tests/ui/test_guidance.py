"""Where the browser is: what the surroundings say, and the line that forwards the port."""

from __future__ import annotations

import webbrowser

import pytest

from gputrace.ui.guidance import NO_DISPLAY, ssh_line, why_no_browser

SSH = {"SSH_CONNECTION": "10.0.0.1 50000 10.0.0.2 22", "DISPLAY": ":0"}


class Browser:
    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize(
    ("environ", "browser", "why"),
    [
        ({"DISPLAY": ":0"}, "firefox", ""),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "xdg-open", ""),
        ({}, "firefox", NO_DISPLAY),
        ({"DISPLAY": ":0"}, "/usr/bin/w3m", "w3m cannot show it"),
        ({"DISPLAY": ":0"}, None, "no browser was found here"),
        (SSH, "firefox", "this is another machine than your browser's (SSH)"),
        ({**SSH, "BROWSER": "/editor/helper"}, "firefox", ""),
    ],
)
def test_whether_one_can_be_opened(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], browser: str | None, why: str
) -> None:
    def get() -> Browser:
        if browser is None:
            raise webbrowser.Error("could not locate runnable browser")
        return Browser(browser)

    monkeypatch.setattr(webbrowser, "get", get)
    monkeypatch.setattr("sys.platform", "linux")
    assert why_no_browser(environ) == why


def test_the_line_goes_where_the_connection_went(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    assert ssh_line(9001, SSH) == "ssh -N -L 9001:127.0.0.1:9001 ada@10.0.0.2"
    port = {"SSH_CONNECTION": "10.0.0.1 50000 10.0.0.2 2222"}
    assert ssh_line(9001, port) == "ssh -N -L 9001:127.0.0.1:9001 -p 2222 ada@10.0.0.2"
    assert ssh_line(9001, {}) == "ssh -N -L 9001:127.0.0.1:9001 ada@HOST"
