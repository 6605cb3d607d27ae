"""Sessions, events and spans: the half of the package that runs inside applications.

It imports no other room of the client; the package `utracefs` offers its names.
"""

import sys

from utracefs.producer.fallback.available import CAN_TRACE

if not CAN_TRACE:
    from utracefs.producer.fallback import without_tracing

    for module in ("_emit", "_event", "_session", "_span"):
        sys.modules[f"{__name__}.{module}"] = without_tracing
