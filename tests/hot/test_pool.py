"""The pools of the pure twin, emptied while the program's threads take spans out of them."""

from __future__ import annotations

import sys
import threading
from collections import Counter

from gputrace.hot.pure import Pool, Span


def test_a_span_is_never_in_two_hands() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            pool, spare = Pool(), []
            pool.extend(Span(pool) for _ in range(500))
            made = Counter(map(id, pool))
            taken: list[Span] = []
            go = threading.Event()

            def take(pool: Pool = pool, taken: list[Span] = taken, go: threading.Event = go) -> None:
                go.wait()
                while pool:
                    try:
                        taken.append(pool.pop())
                    except IndexError:
                        break

            threads = [threading.Thread(target=take) for _ in range(3)]
            for each in threads:
                each.start()
            go.set()
            pool.pour_into(spare)
            for each in threads:
                each.join()
            assert Counter(map(id, [*taken, *spare, *pool])) == made
            pool.closed = True  # else its spans, when they die, are made anew there
    finally:
        sys.setswitchinterval(interval)
