"""A network in which every address there is leads to our own servers: see :mod:`tests.support.network.lab`."""
