"""How fast it is, and what it costs: ``make bench``. Its figures are this machine's; what counts are the ratios.

Everything runs on loopback, with a PostgreSQL and a Redis of its own, and a model that costs next to nothing. What is
compared is measured side by side, in turns, within one run; CPU is that of the processes and of what they have started,
from ``/proc``.
"""
