"""The actions of a run, and its findings.

A judge has a name, so that it can be left out while its fault is known. `Report` collects findings and counts
of all parts and prints a summary at the end; the exit status depends on the findings.
"""

from __future__ import annotations

from collections import Counter

import attrs

JUDGES = {
    "alive": "the daemon does not end by itself",
    "latency": "a read of the tree is answered within a bound",
    "memory": "the daemon's own memory is bounded",
    "conservation": "recorded + filtered + told lost = emitted; nothing twice, nothing invented",
    "waits": "no emit waits for more than 1 ms, whatever the daemon does",
    "order": "time does not go back on a cpu, numbers not in a producer's thread",
    "descriptors": "the daemon's descriptors come back to what they were",
    "idle": "no cpu time once all attackers are gone",
    "log": "no traceback and no internal error",
    "leftovers": "an ended daemon leaves nothing behind",
    "end": "a signal ends it, in order",
}
"""Every judge, and the rule that it checks."""


class Found(Exception):
    """A part cannot continue; its finding is in the report."""


@attrs.frozen
class Finding:
    """A fault."""

    judge: str
    """The judge; one of JUDGES."""

    part: str
    """The part, and the seed that repeats it."""

    text: str
    """The fault, with the last actions."""

    def lines(self) -> list[str]:
        head = f"FOUND by the judge {self.judge} ({JUDGES[self.judge]}), {self.part}:"
        return [head, *("    " + line for line in self.text.splitlines())]


@attrs.define
class Report:
    """`ignored`: judges to leave out. One for all parts of a run."""

    seed: str
    ignored: frozenset[str] = frozenset()
    environ: dict[str, str] = attrs.field(factory=dict)
    """Further environment of the daemon."""
    counts: Counter[str] = attrs.field(factory=Counter)
    findings: list[Finding] = attrs.field(factory=list)
    worst_answer_s: float = 0.0
    peak_own_mib: float = 0.0

    def tell(self, judge: str, part: str, text: str) -> None:
        """A finding, unless its judge is ignored; then it is counted."""
        assert judge in JUDGES
        if judge in self.ignored:
            self.counts[f"ignored findings of the judge {judge}"] += 1
            return
        self.findings.append(Finding(judge, part, text))
        print("\n".join(self.findings[-1].lines()), flush=True)  # before the rest, which may take time

    def stop(self, judge: str, part: str, text: str) -> None:
        """A finding after which the part cannot continue. Raises Found, ignored or not."""
        self.tell(judge, part, text)
        raise Found(text)

    def check(self, judge: str, part: str, holds: bool, text: str) -> None:
        """`tell` unless it holds."""
        self.counts["judgements"] += 1
        if not holds:
            self.tell(judge, part, text)

    def lines(self) -> list[str]:
        """The counts, then the findings, in short."""
        width = max([len("worst answer of the tree"), *map(len, self.counts)])
        lines = [f"seed {self.seed}"]
        lines += [f"  {name:<{width}} {number:>12}" for name, number in sorted(self.counts.items())]
        lines.append(f"  {'worst answer of the tree':<{width}} {self.worst_answer_s * 1e3:>9.1f} ms")
        lines.append(f"  {'peak of its own memory':<{width}} {self.peak_own_mib:>8.1f} MiB")
        lines += [finding.lines()[0] for finding in self.findings]
        lines.append(f"{len(self.findings)} findings" if self.findings else "nothing found")
        return lines
