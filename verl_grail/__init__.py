"""verl-grail: GRAIL (arXiv 2606.04889) and GAR (arXiv 2609.03342) as a plugin of verl.

Importing this package is cheap and touches nothing; registration with verl happens in `verl_grail.plugin`, which
verl loads by itself through the entry-point group ``verl.plugins``.
"""

__version__ = "0.1.0"
