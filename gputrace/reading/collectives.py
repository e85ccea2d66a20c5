"""Which calls all ranks leave together, by their names. It knows nothing of when they do."""

from __future__ import annotations

import re

#: A broadcast or a send is left as soon as one's own part is done.
LEFT_TOGETHER = re.compile(r"barrier|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE)
