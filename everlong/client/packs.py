"""The store of a client's threads, as its plugin knows it.

Alone because the plugin implements `PackSource`: a worker then loads nothing else of the client.
"""

import abc

from temporalio.client import Client

from everlong.errors import PluginNotOnClient
from everlong.storage.pack_store import PackStore


class PackSource(abc.ABC):
    """A plugin that knows the store of a client. `everlong.EverlongPlugin` is one."""

    packs: PackStore

    @abc.abstractmethod
    def check_client(self, client: Client) -> None:
        """Raise if the client's codec hides Everlong's, or has taken its place."""


def find_packs(client: Client) -> PackStore:
    """Return the store of the plugin that a client was made with."""
    for plugin in client.config()["plugins"]:
        if isinstance(plugin, PackSource):
            plugin.check_client(client)
            return plugin.packs
    raise PluginNotOnClient(
        "this client has no EverlongPlugin, which names the store of its threads. Give it one: "
        "Client.connect(..., plugins=[EverlongPlugin(store=...)])"
    )
