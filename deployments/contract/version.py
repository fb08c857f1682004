"""Which version of its contracts this code speaks.

`WIRE` counts the layouts of what crosses processes. A release speaks its own version and the one
before, so processes of two releases in a row work together. The rules for a change are in
docs/data-channel.md; golden bytes of each version hold them.
"""

from __future__ import annotations

# 4: readers ignore further fields and frames of kinds to come; 3 refuses both.
WIRE = 4
SPOKEN = (WIRE, WIRE - 1)  # best first
SPOKEN_TEXT = ",".join(map(str, SPOKEN))
