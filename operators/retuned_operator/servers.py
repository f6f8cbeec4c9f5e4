"""Servers of the leading operator: the agent API, the review page, and the channels' port.

Reports of sidecars are in memory, and the review page reads the store: only the leader has them.
"""

from __future__ import annotations

import logging
from pathlib import Path

from starlette.types import ASGIApp

from retuned.errors import RetunedError
from retuned.ports import Clock
from retuned_operator.agent_api import AgentServer, Hub
from retuned_operator.agent_api.server import Certificates
from retuned_operator.notifications import ClusterChannels
from retuned_operator.settings import Settings

log = logging.getLogger(__name__)

_CHANNELS_RETRY_S = 15.0


class LeaderServers:
    """Servers that begin once this operator leads.

    Parameters
    ----------
    settings
        Address and ports.
    agent
        The agent API.
    hub
        Those that wait for orders.
    pages
        The review page; None serves none.
    channels
        How people hear of proposals; they begin here as well.
    clock
        Time.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        agent: ASGIApp,
        hub: Hub,
        pages: ASGIApp | None,
        channels: ClusterChannels,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._agent_app = agent
        self._hub = hub
        self._pages = pages
        self._channels = channels
        self._clock = clock
        self._agent: AgentServer | None = None
        self._page: AgentServer | None = None
        self._ear: AgentServer | None = None
        self._channels_at_s = float("-inf")

    def look(self, certificate: Path, key: Path, *, leads: bool) -> None:
        """Begin what is to listen and does not yet.

        Raises
        ------
        RetunedError
            If the agent API or the review page cannot be served.
        """
        if self._agent is None:
            if not leads:
                return
            self._agent = self._server(
                self._agent_app, certificate, key, port=self._settings.agent_port, hub=self._hub
            )
            log.info("the agent API listens on port %d", self._agent.port)
            port = self._settings.review_port
            if self._pages is not None and port is not None:
                self._page = self._server(self._pages, certificate, key, port=port)
                log.info("the review page listens on port %d", self._page.port)
        self._channels_on(certificate, key)

    def end(self) -> None:
        """End all of it."""
        for server in (self._ear, self._page, self._agent):
            if server is not None:
                server.stop()
        self._channels.stop()

    def _channels_on(self, certificate: Path, key: Path) -> None:
        """Let channels begin once this one leads, and hear what they say.

        Channels that cannot begin keep nothing else from its work, and are tried again.
        """
        now_s = self._clock.monotonic_s()
        if not self._channels.is_any or self._channels.has_begun or now_s < self._channels_at_s:
            return
        try:
            app, port = self._channels.start(), self._settings.channels_port
            if app is not None and port is not None:
                self._ear = self._server(app, certificate, key, port=port)
                log.info("channels are heard on port %d", self._ear.port)
        except RetunedError as error:
            log.error("no notices are sent and no answers are read: %s", error)
            self._channels.stop()
            self._ear, self._channels_at_s = None, now_s + _CHANNELS_RETRY_S

    def _server(
        self, app: ASGIApp, certificate: Path, key: Path, *, port: int, hub: Hub | None = None
    ) -> AgentServer:
        server = AgentServer(
            app,
            Certificates(certificate, key),
            hub=hub or Hub(),
            address=self._settings.address,
            port=port,
        )
        server.start()
        return server

    # --- what others ask --------------------------------------------------------------------------

    @property
    def agent_port(self) -> int | None:
        """Port of the agent API; None while it does not listen."""
        return self._agent.port if self._agent is not None else None

    @property
    def review_port(self) -> int | None:
        """Port of the review page; None while it does not listen."""
        return self._page.port if self._page is not None else None

    @property
    def channels_port(self) -> int | None:
        """Port on which channels are heard; None while it does not listen."""
        return self._ear.port if self._ear is not None else None

    def agent_lives(self) -> bool:
        """Whether the agent API serves, if it is to."""
        return self._agent is None or self._agent.is_serving
