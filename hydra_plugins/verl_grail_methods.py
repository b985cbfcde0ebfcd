"""Hydra imports every module of the namespace package ``hydra_plugins`` when it starts; this one adds ``method``."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from verl_grail import methods


class VerlGrailMethods(SearchPathPlugin):
    """Appends our configs behind those of the application, so nothing of the application's is hidden."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra for every application of the environment."""
        methods.register()
        search_path.append(provider="verl_grail", path="pkg://verl_grail.methods")
