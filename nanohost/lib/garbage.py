"""When a process looks for garbage in cycles: seldom, and never among what it has loaded.

What nobody refers to is freed at once in any case. What refers to itself in a circle is looked for by Python each time
that 700 more objects have been made than freed, and now and then among all there are: a tenth of a turn's time, with
pauses of a tenth of a second.
"""

import gc
import threading

from nanohost.lib import process

# Objects made before the youngest are looked at; and how often those are until the older ones are, and all.
THRESHOLDS = (5_000, 20, 10)
# Seconds until what is left to the first requests has been loaded too.
LOADED_AFTER = 15.0


def look_seldom() -> None:
    """Begin to look, but not among what there is."""
    gc.set_threshold(*THRESHOLDS)
    gc.freeze()
    gc.enable()


def leave_out_what_there_is() -> None:
    """A service has started: what it is made of stays as long as it does. What was only needed on the way does not, and
    its memory is given back: the models that a new database's migrations make, version by version, are 50 MB. What
    stays comes to stand in large pages, a little later."""
    gc.collect()
    process.give_memory_back()
    gc.freeze()
    later = threading.Timer(LOADED_AFTER, process.use_large_pages)
    later.daemon = True
    later.start()
