"""Docker's API through the `ssh` program, as docker's own command does it: `ssh MACHINE docker system dial-stdio`.

docker-py has the same, but imports paramiko even where the program is used, waits for ever for an engine that does not
answer, and keeps to itself what ssh says. Here a connection is a socket whose other end is ssh's stdin and stdout, so
that time limits and streams are those of a local engine.
"""

from __future__ import annotations

import errno
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import docker
import requests
import requests.adapters
import urllib3
import urllib3.connection
from docker.constants import DEFAULT_DOCKER_API_VERSION

SCHEME = "ssh://"
_CONNECT_SECONDS = 30
"""For ssh's own connection, as docker's command allows."""
_LAST_WORDS_SECONDS = 2.0
"""From the end of ssh's stdout to its exit."""
# Ctrl-C is for the launcher, which may have a container to remove before it ends. What is ignored stays ignored in ssh.
_IGNORING_INTERRUPTS = ("sh", "-c", 'trap "" INT; exec ssh "$@"', "ssh")
# ssh's settings may hand both to a shell (ProxyCommand with %h and %r); with a dash first it takes them for options.
_HOST = re.compile(r"(?!-)[A-Za-z0-9._:%-]+")
_USER = re.compile(r"(?!-)[^\s\0-\x1f\x7f\"'`;|&$<>(){}]+")
_ANY_SOCKET = "unix:///var/run/docker.sock"
"""For docker-py's constructor, which wants an address; nothing ever connects to it."""


@dataclass(frozen=True)
class Target:
    """The engine of another machine.

    Args:
        host: a name that ssh knows.
        user, port: None: as ssh's own settings say.
        path: of the engine's socket there; None: where docker's command finds it there.
    """

    host: str
    user: str | None = None
    port: int | None = None
    path: str | None = None

    @classmethod
    def parse(cls, address: str) -> Self:
        """Of ssh://[user@]host[:port][/path/of.sock].

        Raises:
            ValueError: it is not of that form.
        """
        parts = urlsplit(address)
        host = parts.netloc.rpartition("@")[2]  # hostname is in small letters, which aliases need not be
        host = unquote(host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0])
        user = unquote(parts.username) if parts.username else None
        path = unquote(parts.path) if parts.path.strip("/") else None
        # Passwords are for ssh to ask for.
        has_more = parts.password is not None or parts.query or parts.fragment
        is_odd = not _HOST.fullmatch(host) or not _USER.fullmatch(user or "x") or "\0" in (path or "")
        if has_more or is_odd:
            raise ValueError("expected ssh://[user@]host[:port], or that with the path of a socket behind it")
        return cls(host, user, parts.port, path)

    @property
    def argv(self) -> tuple[str, ...]:
        """ssh's arguments."""
        dial = ["docker", *(["--host", f"unix://{self.path}"] if self.path else []), "system", "dial-stdio"]
        return (
            *("-o", f"ConnectTimeout={_CONNECT_SECONDS}", "-T"),
            *(("-l", self.user) if self.user else ()),
            *(("-p", str(self.port)) if self.port else ()),
            *("--", self.host, shlex.join(dial)),
        )


def ssh_client(address: str, seconds: float) -> docker.DockerClient:
    """A client of the engine at an address that begins with `ssh://`.

    Args:
        seconds: for each answer.

    Raises:
        ValueError: see `Target.parse`.
        FileNotFoundError: there is no program ssh here.
        DockerException, requests.RequestException: nothing answers; the cause is what ssh said, if it said anything.
    """
    adapter = _Adapter(Target.parse(address))
    if shutil.which("ssh") is None:
        raise FileNotFoundError(errno.ENOENT, "there is no program ssh here", "ssh")
    version = _client(adapter, seconds, DEFAULT_DOCKER_API_VERSION).api.version(api_version=False).get("ApiVersion")
    if not isinstance(version, str):
        raise ValueError("what answers there is no container engine")
    return _client(adapter, seconds, version)


def _client(adapter: _Adapter, seconds: float, version: str) -> docker.DockerClient:
    client = docker.DockerClient(base_url=_ANY_SOCKET, version=version, timeout=seconds)
    client.api.mount("http+docker://", adapter)
    return client


class _Adapter(requests.adapters.HTTPAdapter):
    """Carries the requests of one client."""

    def __init__(self, target: Target) -> None:
        self._pool = _Pool("localhost", target=target)
        super().__init__()

    def get_connection_with_tls_context(self, *request: Any, **settings: Any) -> urllib3.HTTPConnectionPool:
        return self._pool

    def request_url(self, request: requests.PreparedRequest, proxies: Any) -> str:
        return str(request.path_url)  # whatever proxies there are for the web

    def close(self) -> None:
        super().close()
        self._pool.close()


class _Connection(urllib3.connection.HTTPConnection):
    """A connection through an ssh of its own. It ends with the last user of its socket, which may be a stream that
    outlives the connection."""

    def __init__(self, *where: Any, target: Target, **settings: Any) -> None:
        super().__init__(*where, **settings)
        self._target = target
        self._ssh: subprocess.Popen[bytes] | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the connection

    def connect(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            program = (*_IGNORING_INTERRUPTS, *self._target.argv)
            end = theirs.fileno()
            self._ssh = subprocess.Popen(program, stdin=end, stdout=end, stderr=self._said)
        self.sock = _ReadingNoFurther(fileno=ours.detach())
        self.sock.settimeout(self.timeout)

    def getresponse(self) -> Any:
        try:
            return super().getresponse()
        except (TimeoutError, KeyboardInterrupt):
            # It may be asking for a password, and would go on with that alone.
            self._process.terminate()
            raise
        except (OSError, HTTPException):
            said = self._last_words()
            if not said:
                raise
        # In place of an error that only knows that the connection ended.
        raise ConnectionAbortedError(said)

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        assert self._ssh is not None, "there is no answer before a request"
        return self._ssh

    def _last_words(self) -> str:
        """What ssh, or the program that it started there, said before it ended; "" while it runs."""
        try:
            self._process.wait(_LAST_WORDS_SECONDS)
        except subprocess.TimeoutExpired:
            return ""
        self._said.seek(0)
        return self._said.read().decode(errors="replace").strip()


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _ReadingNoFurther(socket.socket):
    """docker-py reads streams from the bare socket, and would miss what a buffer took along with an answer's head: on
    the way through ssh both often arrive together."""

    def makefile(self, *mode: Any, **settings: Any) -> Any:
        return super().makefile("rb", 1)  # http.client wants nothing else
