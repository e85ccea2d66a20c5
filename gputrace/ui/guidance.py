"""Where the browser is, and what a person has to do to get the trace there.

It opens no file and no port.
"""

from __future__ import annotations

import getpass
import os
import sys
import threading
import webbrowser
from collections.abc import Mapping

NO_DISPLAY = "there is no display here"
_TEXT_BROWSERS = ("www-browser", "links", "elinks", "lynx", "w3m")


def why_no_browser(environ: Mapping[str, str] = os.environ) -> str:
    """Why no browser can be opened from here; "" if one can.

    One that BROWSER names is trusted to be at hand: editors that run on another machine set it.
    """
    if environ.get("BROWSER"):
        return ""
    if over_ssh(environ):
        return "this is another machine than your browser's (SSH)"
    if sys.platform.startswith("linux") and not (environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")):
        return NO_DISPLAY
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return "no browser was found here"
    name = os.path.basename(getattr(found, "name", ""))
    return f"{name} cannot show it" if name in _TEXT_BROWSERS else ""


def over_ssh(environ: Mapping[str, str] = os.environ) -> bool:
    return bool(environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"))


def open_browser(url: str) -> None:
    """Opens it beside us: some browsers return only when they are closed."""
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def ssh_line(port: int, environ: Mapping[str, str] = os.environ) -> str:
    """The command, typed where the browser is, that makes ``port`` of this machine its own.

    It goes where the present connection went, which SSH_CONNECTION says: client, its port, server, its port.
    """
    parts = environ.get("SSH_CONNECTION", "").split()
    server, server_port = (parts[2], parts[3]) if len(parts) == 4 else ("HOST", "22")
    at = "" if server_port == "22" else f"-p {server_port} "
    return f"ssh -N -L {port}:127.0.0.1:{port} {at}{_user()}@{server}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid that has no name
        return "USER"
